//! Text from tokens as they come: whole characters only, and stop strings across token borders.

use crate::error::Result;
use crate::model::Tokenizer;

/// Tokens decoded anew for each token, at the most.
const WINDOW: usize = 16;
/// Tokens decoded before the first new one, so that its leading space is seen.
const BEFORE: usize = 6;
/// Tokens; a character has four bytes, and each may be a token of its own.
const LONGEST_CHARACTER: usize = 4;

/// Turns a stream of tokens into a stream of text.
///
/// A token may end within a character, and what it means can depend on the one before it. So the
/// last few tokens are decoded together, and the new part of their text is given out when it ends
/// with a whole character. One call of the host a token, and one more every ten tokens.
pub struct TextDecoder {
    tokenizer: Tokenizer,
    tokens: Vec<u32>,
    /// Bytes of the window's text that have been given out.
    given: usize,
    /// Newest tokens whose text has not been given out.
    held: usize,
}

impl TextDecoder {
    /// Decodes tokens that follow those `before`.
    pub fn new(tokenizer: Tokenizer, before: &[u32]) -> Result<TextDecoder> {
        let tokens = before[before.len().saturating_sub(BEFORE)..].to_vec();
        let given = if tokens.is_empty() { 0 } else { tokenizer.decode(&tokens)?.len() };
        Ok(TextDecoder { tokenizer, tokens, given, held: 0 })
    }

    /// The text that this token completes; empty while a character is incomplete.
    pub fn feed(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        self.held += 1;
        let text = self.tokenizer.decode(&self.tokens)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && self.held < LONGEST_CHARACTER {
            return Ok(String::new());
        }
        self.give(text)
    }

    /// The text of the tokens that never made a whole character.
    pub fn finish(&mut self) -> Result<String> {
        if self.held == 0 {
            return Ok(String::new());
        }
        let text = self.tokenizer.decode(&self.tokens)?;
        self.give(text)
    }

    fn give(&mut self, text: String) -> Result<String> {
        let new = text.get(self.given..).unwrap_or_default().to_owned();
        self.given = text.len();
        self.held = 0;
        if self.tokens.len() >= WINDOW {
            self.tokens.drain(..self.tokens.len() - BEFORE);
            self.given = self.tokenizer.decode(&self.tokens)?.len();
        }
        Ok(new)
    }
}

/// Finds the first of some strings in a stream of text, and lets through what comes before it.
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
}

impl StopStrings {
    /// Looks for these strings; empty ones are never found.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> StopStrings {
        let stops = stops.into_iter().map(Into::into).filter(|stop: &String| !stop.is_empty());
        StopStrings { stops: stops.collect(), held: String::new() }
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// The text that is safe to give out, and whether a stop string was found after it.
    pub fn feed(&mut self, text: String) -> (String, bool) {
        if self.stops.is_empty() {
            return (text, false);
        }
        self.held.push_str(&text);
        if let Some(place) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(place);
            return (self.finish(), true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, kept), false)
    }

    /// The text held back, when nothing more comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of the text that starts the stop string, in bytes.
fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    let fits = |length: &usize| stop.is_char_boundary(*length) && text.ends_with(&stop[..*length]);
    (1..=most).rev().find(fits).unwrap_or(0)
}
