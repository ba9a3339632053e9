//! A model that the server serves, and its tokenizer.

use std::rc::Rc;

use crate::error::{Error, ErrorCode, Result};
use crate::json::{self, Value};
use crate::{runtime, text};

/// A model. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Model {
    facts: Rc<Facts>,
}

#[derive(Debug)]
struct Facts {
    name: String,
    architecture: String,
    page_size: u32,
    vocab_size: u32,
    max_position: u32,
    max_batch_tokens: u32,
    bos_token: Option<u32>,
    stop_tokens: Vec<u32>,
    has_chat_template: bool,
}

impl Facts {
    fn read(object: &Value) -> Option<Facts> {
        let number = |key| object.get(key)?.as_u32();
        let name = |key| object.get(key)?.as_str().map(str::to_owned);
        Some(Facts {
            name: name("name")?,
            architecture: name("architecture")?,
            page_size: number("page_size")?,
            vocab_size: number("vocab_size")?,
            max_position: number("max_position")?,
            max_batch_tokens: number("max_batch_tokens")?,
            bos_token: number("bos_token"),
            stop_tokens: object
                .get("stop_tokens")?
                .as_list()?
                .iter()
                .filter_map(Value::as_u32)
                .collect(),
            has_chat_template: object.get("has_chat_template")?.as_bool()?,
        })
    }
}

impl Model {
    /// The server's default model.
    pub fn load() -> Result<Model> {
        let models = runtime::available_models();
        Model::named(models.first().map_or("", String::as_str))
    }

    /// The model of this name.
    ///
    /// Errors: `unknown-model`.
    pub fn named(name: &str) -> Result<Model> {
        let text = runtime::model_info(name)?;
        let Some(facts) = Facts::read(&json::parse(&text)?) else {
            let message = format!("the server's facts of a model lack some: {text}");
            return Err(Error::new(ErrorCode::Internal, message));
        };
        Ok(Model { facts: Rc::new(facts) })
    }

    /// Its name at the server.
    pub fn name(&self) -> &str {
        &self.facts.name
    }

    /// The family it belongs to.
    pub fn architecture(&self) -> &str {
        &self.facts.architecture
    }

    /// Tokens of a KV page.
    pub fn page_size(&self) -> u32 {
        self.facts.page_size
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> u32 {
        self.facts.vocab_size
    }

    /// Longest context, in tokens.
    pub fn max_position(&self) -> u32 {
        self.facts.max_position
    }

    /// Largest forward, in tokens.
    pub fn max_batch_tokens(&self) -> u32 {
        self.facts.max_batch_tokens
    }

    /// The token that starts a context, if the tokenizer adds one.
    pub fn bos_token(&self) -> Option<u32> {
        self.facts.bos_token
    }

    /// Tokens that end a text.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.facts.stop_tokens
    }

    /// True if messages can be rendered.
    pub fn has_chat_template(&self) -> bool {
        self.facts.has_chat_template
    }

    /// Names of the traits that it offers.
    pub fn traits(&self) -> Result<Vec<String>> {
        runtime::available_traits(self.name())
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer { model: self.clone() }
    }
}

/// Text to tokens and back.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    model: Model,
}

impl Tokenizer {
    /// Token ids of a text. Special tokens written in it are recognised, none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        text::tokenize(self.model.name(), text)
    }

    /// Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        text::detokenize(self.model.name(), tokens)
    }

    /// The bytes of every token, by id. Large: ask once.
    pub fn vocabs(&self) -> Result<Vec<Vec<u8>>> {
        text::get_vocabs(self.model.name())
    }

    /// Special tokens, as their texts and ids.
    pub fn special_tokens(&self) -> Result<Vec<(String, u32)>> {
        text::special_tokens(self.model.name())
    }

    /// Text of a conversation in the model's format; `cue` appends what starts the assistant's
    /// turn.
    ///
    /// Errors: `unsupported` (no chat template), `invalid-argument` (it refuses the messages).
    pub fn apply_chat_template(
        &self,
        messages: &[crate::chat::Message],
        cue: bool,
    ) -> Result<String> {
        self.apply_chat_template_with(messages, cue, "")
    }

    /// As `apply_chat_template`, with the template's other arguments, a JSON object: `tools`,
    /// `documents`, `enable_thinking`, ...; `chat_template` names one of several templates.
    pub fn apply_chat_template_with(
        &self,
        messages: &[crate::chat::Message],
        cue: bool,
        arguments: &str,
    ) -> Result<String> {
        let request = crate::chat::request(messages, arguments)?;
        text::apply_chat_template(self.model.name(), &request, cue)
    }
}
