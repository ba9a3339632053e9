//! Text from tokens as they come: whole characters only, and stop strings across token borders.

use crate::error::Result;
use crate::model::Tokenizer;

/// Tokens decoded again for each token, at the most.
const WINDOW: usize = 16;
/// Tokens decoded before the first new one, so that its leading space is seen.
const BEFORE: usize = 6;
/// Tokens; a character has four bytes, and each may be a token of its own.
const LONGEST_CHARACTER: usize = 4;
/// Tokens decoded before the first new one, if fewer would begin within a character.
pub(crate) const MOST_BEFORE: usize = BEFORE + LONGEST_CHARACTER - 1;
/// Characters that stand for bytes of no whole character, at the end of a text that more may
/// complete: one for all of them or one for each, as the tokenizer has it.
const MOST_BROKEN: usize = LONGEST_CHARACTER - 1;

/// Turns a stream of tokens into a stream of text.
///
/// A token may end within a character, and what it means can depend on the one before it. So the
/// last few tokens are decoded together, and the new part of their text is given out up to its last
/// whole character. One call of the host a token, and one more every ten tokens.
pub struct TextDecoder {
    tokenizer: Tokenizer,
    /// The window.
    tokens: Vec<u32>,
    /// The start of the window's text, which has been returned already.
    given: String,
    /// Newest tokens whose text has not all been given out.
    held: usize,
}

impl TextDecoder {
    /// Decodes tokens that follow those `before`.
    pub fn new(tokenizer: Tokenizer, before: &[u32]) -> Result<TextDecoder> {
        let (tokens, given) = last_of(&tokenizer, before)?;
        Ok(TextDecoder { tokenizer, tokens, given, held: 0 })
    }

    /// The text that this token completes; empty while a character is incomplete.
    pub fn feed(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        self.held += 1;
        let text = self.tokenizer.decode(&self.tokens)?;
        let whole = whole_characters(&text).len();
        // Some tokenizers give up a whole run of bytes while its last character is incomplete.
        let unclear = whole < text.len() && !text.starts_with(&self.given);
        if unclear && self.held < LONGEST_CHARACTER {
            return Ok(String::new());
        }
        let start = text.len() - after(&text, &self.given).len();
        let new = text.get(start..whole).unwrap_or_default().to_owned();
        if whole == text.len() {
            self.held = 0;
        }
        // Not while the last bytes before may still be the start of a character.
        if self.tokens.len() >= WINDOW && start <= whole {
            (self.tokens, self.given) = last_of(&self.tokenizer, &self.tokens)?;
            self.given.truncate(whole_characters(&self.given).len());
        } else if !new.is_empty() {
            self.given = text[..whole].to_owned();
        }
        Ok(new)
    }

    /// The text of the tokens that never made a whole character.
    pub fn finish(&mut self) -> Result<String> {
        if self.held == 0 {
            return Ok(String::new());
        }
        self.held = 0;
        let text = self.tokenizer.decode(&self.tokens)?;
        let new = after(&text, &self.given).to_owned();
        self.given = text;
        Ok(new)
    }
}

/// The last of some tokens, enough to decode what follows them, and their text.
pub(crate) fn last_of(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<(Vec<u32>, String)> {
    for count in BEFORE.. {
        let last = &tokens[tokens.len().saturating_sub(count)..];
        let text = if last.is_empty() { String::new() } else { tokenizer.decode(last)? };
        let cut = text.starts_with(char::REPLACEMENT_CHARACTER) && last.len() < tokens.len();
        if !cut || count == MOST_BEFORE {
            return Ok((last.to_vec(), text));
        }
    }
    unreachable!("the loop ends at `MOST_BEFORE`")
}

/// A text without what may become another character at its end.
fn whole_characters(text: &str) -> &str {
    let mut whole = text;
    for _ in 0..MOST_BROKEN {
        whole = whole.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(whole);
    }
    whole
}

/// The part of a text behind the one it goes on from, whose last character may have been
/// incomplete.
pub(crate) fn after<'a>(text: &'a str, before: &str) -> &'a str {
    let mut before = before;
    for _ in 0..=MOST_BROKEN {
        if let Some(new) = text.strip_prefix(before) {
            return new;
        }
        before = before.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(before);
    }
    // A tokenizer may change what it said before: then go on at about the same place.
    let start = before.len().min(text.len());
    let start = (0..=start).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    &text[start..]
}

/// Finds the first of some strings in a stream of text, and lets through what comes before it.
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
    /// The index of the string that was found.
    found: Option<usize>,
}

impl StopStrings {
    /// Looks for these strings; empty ones are never found.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> StopStrings {
        let stops = stops.into_iter().map(Into::into).filter(|stop: &String| !stop.is_empty());
        StopStrings { stops: stops.collect(), held: String::new(), found: None }
    }

    /// The string that was found, the longest if several begin at its place.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|index| self.stops[index].as_str())
    }

    /// The strings that it looks for.
    pub(crate) fn strings(&self) -> &[String] {
        &self.stops
    }

    /// True if there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// The text that is safe to give out, and whether a stop string was found after it.
    pub fn feed(&mut self, text: String) -> (String, bool) {
        if self.stops.is_empty() {
            return (text, false);
        }
        self.held.push_str(&text);
        let places = self.stops.iter().enumerate();
        let places = places.filter_map(|(index, stop)| Some((self.held.find(stop)?, index)));
        if let Some((place, index)) =
            places.min_by_key(|&(place, index)| (place, usize::MAX - self.stops[index].len()))
        {
            self.found = Some(index);
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
