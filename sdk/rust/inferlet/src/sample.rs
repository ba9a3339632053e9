//! Tokens chosen where the model runs: the contract's interface `sample`.
//!
//! One function for each of the contract's; see `sdk/wit/inferlet.wit` for their meaning and
//! errors. `Generator::on_device` stands on them.

use crate::error::Result;
use crate::future::HostFuture;
use crate::host::sample as host;
use crate::runtime;

pub use crate::host::sample::*;

/// A token that the server chose. Log-probabilities are those of the model's own distribution; that
/// of a token that a grammar has forced is not a number.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// The most likely tokens, as many as the sampler's `logprobs` asks for.
    pub top_tokens: Vec<u32>,
    /// Theirs.
    pub top_logprobs: Vec<f32>,
}

impl Sampled {
    /// A token that was not chosen.
    pub(crate) fn forced(token: u32) -> Sampled {
        let (top_tokens, top_logprobs) = (Vec::new(), Vec::new());
        Sampled { token, logprob: f32::NAN, top_tokens, top_logprobs }
    }
}

/// A token that follows an output embed.
pub fn sample(queue: u32, embed: u32, sampler: u32) -> HostFuture<Sampled> {
    HostFuture::new(host::sample(queue, embed, sampler), take_sample)
}

/// As [`sample`], among the tokens that a mask allows: bit `t % 32` of word `t / 32` is token `t`.
pub fn sample_masked(queue: u32, embed: u32, sampler: u32, mask: &[u32]) -> HostFuture<Sampled> {
    HostFuture::new(host::sample_masked(queue, embed, sampler, mask), take_sample)
}

/// Consumes a ready future of a token.
pub fn take_sample(future: u32) -> Result<Sampled> {
    let (token, logprob, top_tokens, top_logprobs) = host::take_sample(future)?;
    Ok(Sampled { token, logprob, top_tokens, top_logprobs })
}

/// A generation's next step: [`embed_sampled`], the forward of that embed, through an adapter
/// unless its name is empty, with the hidden state into the embed itself, and [`sample`] of it. An
/// error leaves none of them queued.
pub fn step(
    queue: u32,
    sampler: u32,
    position: u32,
    embed: u32,
    input_pages: &[u32],
    output_page: u32,
    adapter: &str,
) -> HostFuture<Sampled> {
    let token = host::step(queue, sampler, position, embed, input_pages, output_page, adapter);
    HostFuture::new(token, take_sample)
}

/// Ready when so many tokens of a run can be taken, or it is over.
pub fn run_progress(queue: u32, run: u32, count: u32) -> HostFuture<()> {
    HostFuture::new(host::run_progress(queue, run, count), runtime::take)
}

/// The text of a run, how many of its tokens that are, and the number of the string in `ends` that
/// has ended it.
pub fn run_text(
    queue: u32,
    run: u32,
    before: &[u32],
    ends: &[impl AsRef<str>],
    hidden: &[u32],
    to_client: bool,
) -> HostFuture<(String, u32, u32)> {
    let ends: Vec<&str> = ends.iter().map(AsRef::as_ref).collect();
    let text = host::run_text(queue, run, before, &ends, hidden, to_client);
    HostFuture::new(text, host::take_run_text)
}
