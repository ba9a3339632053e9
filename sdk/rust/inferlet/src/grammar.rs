//! Tokens that keep to a grammar: the contract's interface `grammar`, and [`Grammar`] and
//! [`Matcher`] on top of it.

use crate::error::Result;
use crate::json;
use crate::model::Model;

pub use crate::host::grammar::*;

/// A form that texts are held to.
///
/// ```ignore
/// let grammar = Grammar::json_schema(r#"{"type": "array", "items": {"type": "integer"}}"#);
/// let text = context.generate(Sampler::greedy()).grammar(&grammar).collect_text().await?;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grammar {
    kind: &'static str,
    text: String,
}

impl Grammar {
    /// JSON that satisfies a schema. Its `x-guidance` may hold `strict`, `any_whitespace` and
    /// `any_key_order`, as the contract's `compile-grammar` describes them.
    pub fn json_schema(schema: &str) -> Grammar {
        Grammar { kind: "json-schema", text: schema.to_owned() }
    }

    /// Any JSON object.
    pub fn json() -> Grammar {
        Grammar::json_schema(r#"{"type": "object"}"#)
    }

    /// Text that a regular expression matches as a whole.
    pub fn regex(pattern: &str) -> Grammar {
        Grammar { kind: "regex", text: pattern.to_owned() }
    }

    /// A context-free grammar (EBNF) in Lark's syntax, from the rule `start`.
    pub fn lark(text: &str) -> Grammar {
        Grammar { kind: "lark", text: text.to_owned() }
    }

    /// A context-free grammar as llama.cpp writes it (GBNF), from the rule `root`.
    pub fn ebnf(text: &str) -> Grammar {
        Grammar { kind: "ebnf", text: text.to_owned() }
    }

    /// Each grammar's text behind that of the one before.
    pub fn sequence<'a>(parts: impl IntoIterator<Item = &'a Grammar>) -> Grammar {
        let pair = |part: &Grammar| format!("[\"{}\",{}]", part.kind, json::quote(&part.text));
        let pairs: Vec<String> = parts.into_iter().map(pair).collect();
        Grammar { kind: "sequence", text: format!("[{}]", pairs.join(",")) }
    }

    /// One of some texts.
    pub fn choice<'a>(options: impl IntoIterator<Item = &'a str>) -> Grammar {
        let quoted: Vec<String> = options.into_iter().map(json::quote).collect();
        // Of one terminal there may be any number: each of a rule would be an item of the parser.
        Grammar { kind: "lark", text: format!("start: ONE\nONE: {}", quoted.join(" | ")) }
    }

    /// A matcher at the grammar's start. The server compiles the same grammar once.
    ///
    /// Errors: `invalid-argument` if it is wrong, `limit-exceeded` if it is too large.
    pub async fn matcher(&self, model: &Model) -> Result<Matcher> {
        let grammar = compile_grammar(model.name(), self.kind, &self.text).await?;
        let matcher = create_matcher(grammar);
        release_grammar(grammar)?;
        Ok(Matcher { handle: matcher? })
    }
}

/// One walk through a grammar, for programs that choose tokens themselves. Ends when it is dropped.
#[derive(Debug)]
pub struct Matcher {
    handle: u32,
}

impl Matcher {
    /// Its handle, for the raw functions.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Consumes tokens, all or none of them; whether the text may end then.
    ///
    /// Errors: `invalid-argument` if one is not allowed.
    pub fn advance(&mut self, tokens: &[u32]) -> Result<bool> {
        advance(self.handle, tokens)
    }

    /// Takes the last tokens back.
    pub fn rollback(&mut self, count: u32) -> Result {
        rollback(self.handle, count)
    }

    /// How many of the tokens, from the first on, `advance` would consume.
    pub fn count_allowed(&self, tokens: &[u32]) -> Result<usize> {
        count_allowed(self.handle, tokens).map(|count| count as usize)
    }

    /// True if a token is allowed next.
    pub fn allows(&self, token: u32) -> Result<bool> {
        Ok(self.count_allowed(&[token])? == 1)
    }

    /// The tokens that follow whatever is chosen, possibly none.
    pub fn forced(&self) -> Result<Vec<u32>> {
        grammar_forced(self.handle)
    }

    /// The tokens allowed next: bit `t % 32` of word `t / 32` is token `t`.
    pub fn mask(&self) -> Result<Vec<u32>> {
        grammar_mask(self.handle)
    }

    /// True if the text may end here.
    pub fn is_accepting(&self) -> Result<bool> {
        is_accepting(self.handle)
    }

    /// True if the text must end here, or has ended with a stop token.
    pub fn is_finished(&self) -> Result<bool> {
        is_finished(self.handle)
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        let _ = destroy_matcher(self.handle); // it can only be gone already
    }
}
