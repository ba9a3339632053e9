//! Tokens that keep to a grammar: the contract's interface `grammar`, and [`Grammar`] and [`Matcher`]
//! on top of it.

use crate::abi::call;
use crate::error::Result;
use crate::future::HostFuture;
use crate::json;
use crate::model::Model;
use crate::sample::{take_sample, Sampled};

mod host {
    #[link(wasm_import_module = "pie:inferlet/grammar@0.1.0")]
    unsafe extern "C" {
        #[link_name = "compile-grammar"]
        pub fn compile_grammar(
            model: *const u8,
            model_length: usize,
            kind: *const u8,
            kind_length: usize,
            text: *const u8,
            length: usize,
            area: *mut usize,
        );
        #[link_name = "take-grammar"]
        pub fn take_grammar(future: u32, area: *mut usize);
        #[link_name = "release-grammar"]
        pub fn release_grammar(grammar: u32, area: *mut usize);
        #[link_name = "create-matcher"]
        pub fn create_matcher(grammar: u32, area: *mut usize);
        #[link_name = "destroy-matcher"]
        pub fn destroy_matcher(matcher: u32, area: *mut usize);
        pub fn advance(matcher: u32, tokens: *const u32, count: usize, area: *mut usize);
        pub fn rollback(matcher: u32, count: u32, area: *mut usize);
        #[link_name = "count-allowed"]
        pub fn count_allowed(matcher: u32, tokens: *const u32, count: usize, area: *mut usize);
        #[link_name = "is-accepting"]
        pub fn is_accepting(matcher: u32, area: *mut usize);
        #[link_name = "is-finished"]
        pub fn is_finished(matcher: u32, area: *mut usize);
        #[link_name = "grammar-mask"]
        pub fn grammar_mask(matcher: u32, area: *mut usize);
        #[link_name = "grammar-forced"]
        pub fn grammar_forced(matcher: u32, area: *mut usize);
        #[link_name = "sample-constrained"]
        pub fn sample_constrained(
            queue: u32,
            embed: u32,
            sampler: u32,
            matcher: u32,
            area: *mut usize,
        );
    }
}

/// Compiles a grammar for a model's tokens; `kind` is `json-schema`, `regex` or `lark`. The future
/// gives its handle.
pub fn compile_grammar(model: &str, kind: &str, text: &str) -> HostFuture<u32> {
    let started = call(|area| unsafe {
        host::compile_grammar(
            model.as_ptr(),
            model.len(),
            kind.as_ptr(),
            kind.len(),
            text.as_ptr(),
            text.len(),
            area,
        )
    });
    HostFuture::new(started, take_grammar)
}

/// Consumes a ready future of a grammar.
pub fn take_grammar(future: u32) -> Result<u32> {
    call(|area| unsafe { host::take_grammar(future, area) })
}

/// Ends a grammar's handle; its matchers go on.
pub fn release_grammar(grammar: u32) -> Result {
    call(|area| unsafe { host::release_grammar(grammar, area) })
}

/// A matcher at a grammar's beginning.
pub fn create_matcher(grammar: u32) -> Result<u32> {
    call(|area| unsafe { host::create_matcher(grammar, area) })
}

/// Ends a matcher.
pub fn destroy_matcher(matcher: u32) -> Result {
    call(|area| unsafe { host::destroy_matcher(matcher, area) })
}

/// Consumes tokens, all or none of them, at most 1024; whether the text may end then.
pub fn advance(matcher: u32, tokens: &[u32]) -> Result<bool> {
    call(|area| unsafe { host::advance(matcher, tokens.as_ptr(), tokens.len(), area) })
}

/// Takes the last tokens back.
pub fn rollback(matcher: u32, count: u32) -> Result {
    call(|area| unsafe { host::rollback(matcher, count, area) })
}

/// How many of the tokens, from the first on, [`advance`] would consume.
pub fn count_allowed(matcher: u32, tokens: &[u32]) -> Result<u32> {
    call(|area| unsafe { host::count_allowed(matcher, tokens.as_ptr(), tokens.len(), area) })
}

/// Whether the text may end here.
pub fn is_accepting(matcher: u32) -> Result<bool> {
    call(|area| unsafe { host::is_accepting(matcher, area) })
}

/// Whether the text must end here, or has ended with a stop token.
pub fn is_finished(matcher: u32) -> Result<bool> {
    call(|area| unsafe { host::is_finished(matcher, area) })
}

/// The tokens allowed next: bit `t % 32` of word `t / 32` is token `t`.
pub fn grammar_mask(matcher: u32) -> Result<Vec<u32>> {
    call(|area| unsafe { host::grammar_mask(matcher, area) })
}

/// The tokens that follow whatever is chosen, possibly none; they are not consumed.
pub fn grammar_forced(matcher: u32) -> Result<Vec<u32>> {
    call(|area| unsafe { host::grammar_forced(matcher, area) })
}

/// As `sample::sample`, among the tokens that the matcher allows; the matcher consumes the one chosen.
pub fn sample_constrained(
    queue: u32,
    embed: u32,
    sampler: u32,
    matcher: u32,
) -> HostFuture<Sampled> {
    let started =
        call(|area| unsafe { host::sample_constrained(queue, embed, sampler, matcher, area) });
    HostFuture::new(started, take_sample)
}

/// What a text has to look like.
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
    /// JSON that satisfies a schema. White space is as in `{"a": [1, 2]}`, unless the schema's
    /// `x-guidance` says otherwise.
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

    /// One of some texts.
    pub fn choice<'a>(options: impl IntoIterator<Item = &'a str>) -> Grammar {
        let quoted: Vec<String> = options.into_iter().map(json::quote).collect();
        Grammar { kind: "lark", text: format!("start: {}", quoted.join(" | ")) }
    }

    /// A walk from the grammar's beginning. The server compiles the same grammar once.
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

    /// Whether a token is allowed next.
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

    /// Whether the text may end here.
    pub fn is_accepting(&self) -> Result<bool> {
        is_accepting(self.handle)
    }

    /// Whether the text must end here, or has ended with a stop token.
    pub fn is_finished(&self) -> Result<bool> {
        is_finished(self.handle)
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        let _ = destroy_matcher(self.handle); // it can only be gone already
    }
}
