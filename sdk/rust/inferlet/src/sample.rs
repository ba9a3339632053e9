//! Tokens chosen where the model runs: the contract's interface `sample`.
//!
//! One function for each of the contract's; see `sdk/wit/inferlet.wit` for their meaning and
//! errors. [`Generator`](crate::Generator) stands on them.

pub use crate::host::sample::*;

impl Sampled {
    /// A token that was not chosen.
    pub(crate) fn forced(token: u32) -> Sampled {
        let (top_tokens, top_logprobs) = (Vec::new(), Vec::new());
        Sampled { token, logprob: f32::NAN, top_tokens, top_logprobs }
    }
}
