//! Conversations in the model's chat format.
//!
//! A chat template renders a whole conversation, and may treat its parts differently by what comes
//! before and after. So each new part is rendered together with what precedes it, and cut off.

use crate::error::{Error, ErrorCode, Result};
use crate::json;
use crate::model::Model;

/// Stands for the generated text when a template is rendered.
const MARK: &str = "\u{2400}pie-py\u{2400}";

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// What is said.
    pub content: String,
}

impl Message {
    /// Instructions that hold for the whole conversation.
    pub fn system(content: impl Into<String>) -> Message {
        Message { role: "system", content: content.into() }
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Message {
        Message { role: "user", content: content.into() }
    }

    /// What the model has said.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message { role: "assistant", content: content.into() }
    }
}

/// The messages as the contract wants them.
pub(crate) fn to_json(messages: &[Message]) -> String {
    let parts: Vec<String> = messages
        .iter()
        .map(|message| {
            format!(r#"{{"role":"{}","content":{}}}"#, message.role, json::quote(&message.content))
        })
        .collect();
    format!("[{}]", parts.join(","))
}

/// The messages of a context, and which of them are tokens already.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    rendered: usize,
    /// Token of the context at which the assistant's open turn starts.
    turn_start: Option<usize>,
    /// Whether the program has ended the last turn with a stop token.
    sealed: bool,
    /// Whether what closes the last turn is missing, as the assistant's tokens are its own.
    unclosed: bool,
    /// A message is the last thing said, so the assistant is next.
    unanswered: bool,
}

impl Conversation {
    /// Whether messages are not tokens yet.
    pub(crate) fn waiting(&self) -> bool {
        self.rendered < self.messages.len()
    }

    /// Whether the assistant's turn is next.
    pub(crate) fn unanswered(&self) -> bool {
        self.unanswered
    }

    /// Notes that something else than a message was said last.
    pub(crate) fn went_on(&mut self) {
        self.unanswered = false;
    }

    /// Where the assistant's open turn starts: what follows there is its message once another
    /// comes.
    pub(crate) fn open_turn(&self) -> Option<usize> {
        self.turn_start
    }

    /// Ends the assistant's open turn: this is what it said.
    pub(crate) fn close_turn(&mut self, said: String) {
        self.messages.push(Message::assistant(said));
        self.rendered += 1;
        self.turn_start = None;
        self.unclosed = true;
    }

    pub(crate) fn add(&mut self, message: Message) {
        self.messages.push(message);
        self.unanswered = true;
    }

    /// Notes that a stop token ends the assistant's turn.
    pub(crate) fn seal(&mut self) {
        self.sealed = true;
    }

    /// Tokens of the messages that wait, and of what starts the assistant's turn if `cue`.
    /// `started` is the number of tokens in the context.
    pub(crate) fn render(&mut self, model: &Model, cue: bool, started: usize) -> Result<Vec<u32>> {
        if self.turn_start.is_some() && !self.waiting() {
            return Ok(Vec::new()); // cued already
        }
        let text = self.text(model, cue, started)?;
        let mut tokens = model.tokenizer().encode(&text)?;
        self.rendered = self.messages.len();
        self.unclosed = false;
        if self.sealed && !tokens.is_empty() && tokens.first() == model.stop_tokens().first() {
            tokens.remove(0);
        }
        self.sealed = false;
        if cue {
            self.turn_start = Some(started + tokens.len());
            self.unanswered = false;
        }
        Ok(tokens)
    }

    fn text(&self, model: &Model, cue: bool, started: usize) -> Result<String> {
        let tokenizer = model.tokenizer();
        let old = &self.messages[..self.rendered];
        if old.is_empty() {
            if started == 0 {
                return tokenizer.apply_chat_template(&self.messages, cue);
            }
            // The conversation goes on from text: as it would after any other turns.
            let before = [Message::user("Hi"), Message::assistant(MARK)];
            return self.addition(model, &before, cue);
        }
        if !self.unclosed {
            return self.addition(model, old, cue);
        }
        // The template may trim what was generated; what follows the turn is what is missing.
        let mut marked = self.messages.clone();
        marked[self.rendered - 1].content = MARK.to_owned();
        let text = tokenizer.apply_chat_template(&marked, cue)?;
        Ok(text.rsplit(MARK).next().unwrap_or_default().to_owned())
    }

    /// What the messages that wait add to the text of those before them.
    fn addition(&self, model: &Model, before: &[Message], cue: bool) -> Result<String> {
        let tokenizer = model.tokenizer();
        let all = [before, &self.messages[self.rendered..]].concat();
        let start = tokenizer.apply_chat_template(before, false)?;
        let text = tokenizer.apply_chat_template(&all, cue)?;
        text.strip_prefix(&start).map(str::to_owned).ok_or_else(|| {
            Error::new(
                ErrorCode::Unsupported,
                "the model's chat template renders earlier messages in another way when others \
                 follow: fill the whole conversation at once, with \
                 `Tokenizer::apply_chat_template`",
            )
        })
    }
}
