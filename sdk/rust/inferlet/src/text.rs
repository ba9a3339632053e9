//! Text into tokens and embeds, output embeds into distributions: the contract's interfaces
//! `input-text`, `tokenize`, `encode` and `output-text`.

pub use crate::host::encode::*;
pub use crate::host::input_text::*;
pub use crate::host::output_text::*;
pub use crate::host::tokenize::*;

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
