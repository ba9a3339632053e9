//! Attention of inputs: the contract's interface `introspect`.
//!
//! `Context::attention` stands on it.

use crate::context::{Context, UNKNOWN_TOKEN};
use crate::error::{Error, ErrorCode, Result};
use crate::{allocate, text};

pub use crate::host::introspect::*;

impl Attention {
    /// The columns of a row.
    pub fn row(&self, number: usize) -> &[f32] {
        let width = self.numbers.len() / self.rows as usize;
        &self.numbers[number * width..(number + 1) * width]
    }
}

impl Context {
    /// Attention that the last `observed` tokens pay to all tokens of the context, which is
    /// flushed.
    ///
    /// The last tokens run once more, beside the context, which stays as it is. Each row has a
    /// number a token and adds up to `observed`.
    ///
    /// Errors: `invalid-argument` if there are fewer tokens, or the observed ones are not known;
    /// `limit-exceeded` (too many numbers or inputs); `unsupported`; `out-of-resources`.
    pub async fn attention(&mut self, observed: usize, detail: Detail) -> Result<Attention> {
        self.flush().await?;
        let length = self.tokens().len();
        let before = length.wrapping_sub(observed);
        let known = |tokens: &[u32]| !tokens.contains(&UNKNOWN_TOKEN);
        if observed == 0 || observed > length || !known(&self.tokens()[before..]) {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("{observed} tokens can't be observed: {length} are there, or some unknown"),
            ));
        }
        let (queue, count) = (self.queue(), observed as u32);
        let mut positions = Vec::new();
        for place in before..length {
            positions.extend([self.position(place)? as u32, 1]);
        }
        let embeds = [allocate::alloc_emb(queue, count)?, count];
        let embedded = text::embed_txt(queue, &self.tokens()[before..], &positions, &embeds);
        // They see what came before and each other, but not what the pages hold of themselves.
        let rows = (0..count).map(|i| [5, 0, before as u32, count, i + 1, count - i - 1]);
        let mask: Vec<u32> = rows.flatten().collect();
        let (pages, adapter) = (self.filled_pages(), self.adapter().unwrap_or(""));
        let asked = embedded.map(|()| {
            forward_with_attention(queue, &pages, &embeds, &[], &[], &mask, count, detail, adapter)
        });
        allocate::dealloc_emb(queue, &embeds)?;
        let found = asked?.await?;
        let numbers = found.numbers.chunks_exact(length + observed);
        let merged = numbers.flat_map(|row| row[..before].iter().chain(&row[length..]));
        Ok(Attention { rows: found.rows, numbers: merged.copied().collect() })
    }
}
