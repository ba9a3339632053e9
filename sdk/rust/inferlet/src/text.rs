//! Text into tokens and embeds, output embeds into distributions: the contract's interfaces
//! `input-text`, `tokenize` and `output-text`.

pub use crate::host::input_text::*;
pub use crate::host::output_text::*;
pub use crate::host::tokenize::*;

use crate::error::Result;
use crate::{runtime, HostFuture};

/// As `get_next_dist`, taken as text: numbers of lists pass one by one, a text at once.
pub(crate) fn next_distribution(queue: u32, embed: u32, k: u32) -> HostFuture<Distribution> {
    HostFuture::new(get_next_dist(queue, embed, k).into_handle(), take)
}

fn take(future: u32) -> Result<Distribution> {
    let text = runtime::take_text(future)?;
    let (tokens, probabilities) = text.as_bytes().split_at(text.len() / 2);
    Ok(Distribution {
        tokens: words(tokens).collect(),
        probabilities: words(probabilities).map(f32::from_bits).collect(),
    })
}

/// Words of eight hexadecimal digits, the lowest byte first.
fn words(digits: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let value = |digit: u8| u32::from((digit & 15) + 9 * (digit >> 6));
    let byte = move |pair: &[u8]| value(pair[0]) << 4 | value(pair[1]);
    digits.chunks_exact(8).map(move |word| {
        let bytes = word.chunks_exact(2).rev();
        bytes.fold(0, |high, pair| high << 8 | byte(pair))
    })
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
