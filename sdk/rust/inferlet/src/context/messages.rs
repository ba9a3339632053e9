//! Input of a context: text, tokens and messages, buffered until they run.

use super::Context;
use crate::chat::Message;
use crate::error::Result;

impl Context {
    /// Appends text. Special tokens written in it are recognised. An empty context starts with the
    /// model's beginning-of-sequence token, if its tokenizer adds one.
    pub fn fill(&mut self, text: &str) -> Result<&mut Context> {
        self.render()?;
        let tokens = self.model.tokenizer().encode(text)?;
        if self.is_empty() && tokens.first() != self.model.bos_token().as_ref() {
            self.pending.extend(self.model.bos_token());
        }
        self.pending.extend(tokens);
        self.chat.unanswered = false;
        Ok(self)
    }

    /// Appends tokens as they are.
    pub fn append(&mut self, tokens: &[u32]) -> Result<&mut Context> {
        self.render()?;
        self.pending.extend(tokens);
        self.chat.unanswered = false;
        Ok(self)
    }

    /// Appends a system message in the model's chat format.
    pub fn system(&mut self, message: &str) -> Result<&mut Context> {
        self.message(Message::system(message))
    }

    /// Appends a user message in the model's chat format.
    pub fn user(&mut self, message: &str) -> Result<&mut Context> {
        self.message(Message::user(message))
    }

    /// Appends an assistant message in the model's chat format: a turn of the past.
    pub fn assistant(&mut self, message: &str) -> Result<&mut Context> {
        self.message(Message::assistant(message))
    }

    /// Appends what starts the assistant's turn. A generation after a message does so by itself.
    pub fn cue(&mut self) -> Result<&mut Context> {
        self.go_on(true)?;
        Ok(self)
    }

    /// Ends the assistant's turn with the model's stop token.
    pub fn seal(&mut self) -> Result<&mut Context> {
        self.render()?;
        self.pending.extend(self.model.stop_tokens().first());
        Ok(self)
    }

    /// Appends a message with all that its role has, such as a tool's result.
    pub fn message(&mut self, message: Message) -> Result<&mut Context> {
        let tokens = [&self.tokens[..], &self.pending[..]].concat();
        self.chat.add(&self.model, message, &tokens)?;
        Ok(self)
    }

    /// Tokens that were cut off since the chat template changed what it had written of them: some
    /// leave past thinking out, or move the system message to the last turn.
    pub fn recomputed(&self) -> usize {
        self.chat.recomputed
    }

    /// Makes the context what the chat template makes of the conversation.
    fn go_on(&mut self, cue: bool) -> Result {
        let tokens = [&self.tokens[..], &self.pending[..]].concat();
        let (keep, new) = self.chat.render(&self.model, cue, &tokens)?;
        if keep < tokens.len() {
            self.cut(keep)?;
        }
        self.pending.extend(new);
        Ok(())
    }

    /// Turns the messages that wait into tokens.
    pub(super) fn render(&mut self) -> Result {
        if self.chat.waiting() {
            self.go_on(false)?;
        }
        Ok(())
    }
}
