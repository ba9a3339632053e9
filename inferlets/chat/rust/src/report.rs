//! Messages to the gateway: lists in JSON, in the gateway's `backend/events.py`.

use std::fmt::Write;

use inferlet::{json, session, Context, Result, Sampled};

use crate::request::Request;

/// What a choice has generated and the gateway does not know yet.
pub struct Piece {
    index: usize,
    pub text: String,
    count: usize,
    ids: Vec<u32>,
    /// `[logprob, [[token, logprob], ...]]` for each token.
    logprobs: String,
}

impl Piece {
    pub fn new(index: usize) -> Piece {
        Piece { index, text: String::new(), count: 0, ids: Vec::new(), logprobs: String::new() }
    }

    /// Adds a token; its text follows once it is known.
    pub fn add(&mut self, token: u32, sampled: Option<&Sampled>, request: &Request) {
        self.count += 1;
        if request.ids || request.logprobs {
            self.ids.push(token);
        }
        if let (true, Some(sampled)) = (request.logprobs, sampled) {
            let comma = if self.logprobs.is_empty() { "" } else { "," };
            let _ = write!(self.logprobs, "{comma}[{},[", number(sampled.logprob));
            for (i, (token, logprob)) in
                sampled.top_tokens.iter().zip(&sampled.top_logprobs).enumerate()
            {
                let comma = if i > 0 { "," } else { "" };
                let _ = write!(self.logprobs, "{comma}[{token},{}]", number(*logprob));
            }
            self.logprobs.push_str("]]");
        }
    }
}

/// A number of JSON, which knows no infinity.
fn number(logprob: f32) -> f32 {
    logprob.clamp(-9999.0, 0.0)
}

/// Tells how long the prompt is, its tokens if these are wanted, and how its text ends.
pub async fn prompt(request: &Request, context: &Context, tail: &str) -> Result {
    let ids: Vec<u32> = if request.ids {
        context.tokens().iter().chain(context.buffer()).copied().collect()
    } else {
        Vec::new()
    };
    let tail = json::quote(tail);
    session::stream(&format!("[\"prompt\",{},{ids:?},{tail}]", context.len())).await
}

/// Tells what a choice has more, if there is anything.
pub async fn piece(piece: &mut Piece, request: &Request) -> Result {
    if piece.count == 0 && piece.text.is_empty() {
        return Ok(());
    }
    let mut message = String::with_capacity(piece.text.len() + 32);
    let _ =
        write!(message, "[\"piece\",{},{},{}", piece.index, json::quote(&piece.text), piece.count);
    if request.ids || request.logprobs {
        let _ = write!(message, ",{:?},[{}]", piece.ids, piece.logprobs);
    }
    message.push(']');
    *piece = Piece::new(piece.index);
    session::stream(&message).await
}

/// Tells that a choice has ended, and why: `stop` or `length`.
pub async fn end(index: usize, reason: &str, found: Option<&str>, count: usize) -> Result {
    let found = found.map_or_else(|| "null".to_owned(), json::quote);
    session::stream(&format!("[\"end\",{index},\"{reason}\",{found},{count}]")).await
}
