//! Messages to the gateway: lists in JSON, in the gateway's `backend/job.py`.

use std::fmt::Write;

use inferlet::{adapter, json, Context, Distribution, Result, Sampled};

use crate::request::Request;

/// Bytes after which a message ends: servers may take no long ones.
pub const PART: usize = 8 << 10;

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

    /// It fills a message.
    pub fn is_long(&self) -> bool {
        self.text.len() + self.logprobs.len() >= PART
    }

    /// Adds a token; its text follows once it is known.
    pub fn add(&mut self, token: u32, sampled: Option<&Sampled>, request: &Request) {
        self.count += 1;
        if request.ids || request.logprobs {
            self.ids.push(token);
        }
        if let (true, Some(sampled)) = (request.logprobs, sampled) {
            let top = sampled.top_tokens.iter().copied().zip(sampled.top_logprobs.iter().copied());
            write_logprobs(&mut self.logprobs, sampled.logprob, top);
        }
    }
}

/// Adds a token's log-probability, and the likeliest tokens with theirs, to a list in JSON.
fn write_logprobs(out: &mut String, own: f32, top: impl Iterator<Item = (u32, f32)>) {
    let comma = if out.is_empty() { "" } else { "," };
    let _ = write!(out, "{comma}[{},[", number(own));
    for (i, (token, logprob)) in top.enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(out, "{comma}[{token},{}]", number(logprob));
    }
    out.push_str("]]");
}

/// A number of JSON, which knows no infinity.
fn number(logprob: f32) -> f32 {
    logprob.clamp(-9999.0, 0.0)
}

/// The log-probabilities of a prompt's tokens but the first, in JSON, by the distributions before
/// them.
pub fn of_prompt(tokens: &[u32], before: &[Distribution], top: usize) -> String {
    let mut out = String::new();
    for (&token, distribution) in tokens.iter().skip(1).zip(before) {
        let likeliest = distribution.tokens.iter().take(top);
        let likeliest = likeliest.map(|&other| (other, distribution.logprob(other)));
        write_logprobs(&mut out, distribution.logprob(token), likeliest);
    }
    out
}

/// Tells how long the prompt is, its tokens if these are wanted, how its text ends, its
/// log-probabilities in JSON, and the version of the adapter that it goes through.
pub async fn prompt(request: &Request, context: &Context, tail: &str, logprobs: &str) -> Result {
    let ids: Vec<u32> = if request.ids || request.prompt_logprobs.is_some() {
        context.tokens().iter().chain(context.buffer()).copied().collect()
    } else {
        Vec::new()
    };
    let tail = json::quote(tail);
    let through = context.adapter().unwrap_or_default();
    let version = json::quote(&adapter::weights_version(request.model.name(), through)?);
    let length = context.len();
    request.tell(&format!("[\"prompt\",{length},{ids:?},{tail},[{logprobs}],{version}]")).await
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
    request.tell(&message).await
}

/// Tells that a choice has ended, why (`stop` or `length`), and how many of the prompt's tokens the
/// prefix cache had.
pub async fn end(
    request: &Request,
    index: usize,
    reason: &str,
    found: Option<&str>,
    count: usize,
    cached: usize,
) -> Result {
    let found = found.map_or_else(|| "null".to_owned(), json::quote);
    request.tell(&format!("[\"end\",{index},\"{reason}\",{found},{count},{cached}]")).await
}
