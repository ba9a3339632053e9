//! Text into tokens and embeds, output embeds into distributions: the contract's interfaces
//! `input-text`, `tokenize` and `output-text`.

use crate::error::Result;
use crate::future::HostFuture;
use crate::host::output_text as host;

pub use crate::host::input_text::*;
pub use crate::host::tokenize::*;

/// The most likely next tokens, the likeliest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Their probabilities, of the softmax over the whole vocabulary at temperature 1.
    pub probabilities: Vec<f32>,
}

impl Distribution {
    /// The likeliest token.
    pub fn max_index(&self) -> u32 {
        self.tokens[0]
    }

    /// A token's log-probability; minus infinity if it is not among these.
    pub fn logprob(&self, token: u32) -> f32 {
        let found = self.tokens.iter().position(|&other| other == token);
        found.map_or(f32::NEG_INFINITY, |at| self.probabilities[at].ln())
    }
}

/// The distribution of the `k` most likely next tokens after an output embed.
pub fn get_next_dist(queue: u32, embed: u32, k: u32) -> HostFuture<Distribution> {
    HostFuture::new(host::get_next_dist(queue, embed, k), take_dist)
}

/// Consumes a ready future of a distribution.
pub fn take_dist(future: u32) -> Result<Distribution> {
    let (tokens, probabilities) = host::take_dist(future)?;
    Ok(Distribution { tokens, probabilities })
}
