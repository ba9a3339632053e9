//! Tokens chosen where the model runs: the contract's interface `sample`.
//!
//! One function for each of the contract's; see `sdk/wit/inferlet.wit` for their meaning and
//! errors. [`Generator`](crate::Generator) stands on them.

use crate::future::HostFuture;
use crate::host::sample as host;

pub use crate::host::sample::*;

impl Sampled {
    /// A token that was not chosen.
    pub(crate) fn forced(token: u32) -> Sampled {
        let (top_tokens, top_logprobs) = (Vec::new(), Vec::new());
        Sampled { token, logprob: f32::NAN, top_tokens, top_logprobs }
    }
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
    host::run_text(queue, run, before, &ends, hidden, to_client)
}
