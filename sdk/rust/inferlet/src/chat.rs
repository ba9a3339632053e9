//! Conversations in the model's chat format.
//!
//! A chat template renders a whole conversation, and may render a part in another way when more
//! follows: move the system message, or leave past thinking out. So the whole is rendered each
//! time. Where it begins with the text that is there, the rest is added; where it does not, the
//! context is cut back to where the two part.

use std::rc::Rc;

use crate::error::{invalid, Error, ErrorCode, Result};
use crate::json::{self, Value};
use crate::model::Model;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// Its text.
    pub content: String,
    /// Other members, with their values in JSON.
    pub members: Vec<(String, String)>,
}

impl Message {
    /// A message of any role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), members: Vec::new() }
    }

    /// Instructions that hold for the whole conversation.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content)
    }

    /// A turn of the user.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content)
    }

    /// A turn of the model, of the past.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new("assistant", content)
    }

    /// With another member, such as `tool_calls` or `name`; `value` is its JSON.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Message {
        self.members.push((name.into(), value.into()));
        self
    }

    fn to_json(&self) -> String {
        let own = [("role", &self.role), ("content", &self.content)];
        let own = own.map(|(name, text)| format!(r#""{name}":{}"#, json::quote(text)));
        let more =
            self.members.iter().map(|(name, value)| format!("{}:{value}", json::quote(name)));
        json::object(own.into_iter().chain(more))
    }
}

/// Messages, and a template's other arguments as a JSON object or an empty text, as the contract
/// wants them.
pub(crate) fn request(messages: &[Message], arguments: &str) -> Result<String> {
    let parts: Vec<String> = messages.iter().map(Message::to_json).collect();
    let list = format!("[{}]", parts.join(","));
    let arguments = arguments.trim();
    if arguments.is_empty() {
        return Ok(list);
    }
    let Value::Object(members) = json::parse(arguments)? else {
        return invalid("the arguments of a chat template are a JSON object");
    };
    let inner = arguments[1..arguments.len() - 1].trim();
    let comma = if members.is_empty() { "" } else { "," };
    Ok(format!(r#"{{{inner}{comma}"messages":{list}}}"#))
}

/// The messages of a context, and which of them are tokens already.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    /// Turns that seem to precede, where other text does.
    past: Vec<Message>,
    /// Arguments of the template next to the messages, a JSON object or nothing.
    pub(crate) arguments: Rc<str>,
    rendered: usize,
    /// Token of the context at which the assistant's open turn starts.
    turn_start: Option<usize>,
    /// The conversation's text so far.
    text: String,
    /// How long text and context were after each part. A cut never goes below the first.
    marks: Vec<(usize, usize)>,
    /// Tokens cut off since the template changed what it had written of them.
    pub(crate) recomputed: usize,
    /// A message is the last thing said, so the assistant is next.
    pub(crate) unanswered: bool,
}

impl Conversation {
    /// An empty one with arguments of the template.
    pub(crate) fn with(arguments: Rc<str>) -> Conversation {
        Conversation { arguments, ..Conversation::default() }
    }

    /// True if messages are not tokens yet.
    pub(crate) fn waiting(&self) -> bool {
        self.rendered < self.messages.len()
    }

    /// Adds a message; first the tokens since the last cue become the assistant's. `tokens` are all
    /// of the context.
    pub(crate) fn add(&mut self, model: &Model, message: Message, tokens: &[u32]) -> Result {
        if let Some(start) = self.turn_start {
            let mut said = &tokens[start..];
            self.text.push_str(&model.tokenizer().decode(said)?);
            self.marks.push((self.text.len(), tokens.len()));
            if said.last().is_some_and(|last| model.stop_tokens().contains(last)) {
                said = &said[..said.len() - 1]; // the program has ended the turn itself
            }
            self.messages.push(Message::assistant(model.tokenizer().decode(said)?));
            self.turn_start = None;
            self.rendered += 1;
        }
        self.messages.push(message);
        self.unanswered = true;
        Ok(())
    }

    /// Renders the messages that wait, and what starts the assistant's turn if `cue`: how many of
    /// the context's `tokens` stay, and those that follow them.
    pub(crate) fn render(
        &mut self,
        model: &Model,
        cue: bool,
        tokens: &[u32],
    ) -> Result<(usize, Vec<u32>)> {
        if self.turn_start.is_some() && !self.waiting() {
            return Ok((tokens.len(), Vec::new())); // cued already
        }
        if self.marks.last().is_none_or(|mark| mark.1 != tokens.len()) {
            self.begin(model, tokens.len())?;
        }
        let text = self.apply(model, self.messages.len(), cue)?;
        let (keep, new) = self.continuation(model, &text, tokens)?;
        self.marks.push((text.len(), keep + new.len()));
        self.text = text;
        self.rendered = self.messages.len();
        self.recomputed += tokens.len() - keep;
        if cue {
            self.turn_start = Some(keep + new.len());
            self.unanswered = false;
        }
        Ok((keep, new))
    }

    /// Begins at a text that is no part of the conversation, as it would after any turns.
    fn begin(&mut self, model: &Model, length: usize) -> Result {
        if length > 0 && self.rendered == 0 {
            self.past = vec![Message::user("Hi"), Message::assistant("Hello.")];
        }
        self.text = match length {
            0 => String::new(),
            _ => self.apply(model, self.rendered, false)?,
        };
        self.marks = vec![(self.text.len(), length)];
        Ok(())
    }

    /// The text of the first messages.
    fn apply(&self, model: &Model, count: usize, cue: bool) -> Result<String> {
        let all = [&self.past[..], &self.messages[..count]].concat();
        model.tokenizer().apply_chat_template_with(&all, cue, &self.arguments)
    }

    /// How many tokens stay for a text, and those that follow them.
    fn continuation(
        &mut self,
        model: &Model,
        text: &str,
        tokens: &[u32],
    ) -> Result<(usize, Vec<u32>)> {
        let shared = shared(self.text.as_bytes(), text.as_bytes());
        while self.marks.last().is_some_and(|mark| mark.0 > shared) {
            self.marks.pop();
        }
        let Some(&(start, keep)) = self.marks.last() else {
            return Err(Error::new(
                ErrorCode::Unsupported,
                "the model's chat template renders what was there before this conversation in \
                 another way when messages follow: begin an empty context",
            ));
        };
        let mut new = tokens_after(model, text, start)?;
        let same = self::shared(&tokens[keep..], &new);
        Ok((keep + same, new.split_off(same)))
    }
}

/// Tokens of a text from a byte on, if possible as they are within the whole.
fn tokens_after(model: &Model, text: &str, start: usize) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer();
    let mut whole = tokenizer.encode(text)?;
    let before = tokenizer.encode(&text[..start])?;
    if whole.starts_with(&before) {
        return Ok(whole.split_off(before.len()));
    }
    tokenizer.encode(&text[start..])
}

/// With how many bytes or tokens two lists begin alike.
fn shared<T: PartialEq>(one: &[T], other: &[T]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
