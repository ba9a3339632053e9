//! What inputs attend to: the contract's interface `introspect`.
//!
//! `Context::attention` stands on it.

use crate::context::{Context, UNKNOWN_TOKEN};
use crate::error::{Error, ErrorCode, Result};
use crate::future::HostFuture;
use crate::host::introspect as host;
use crate::{allocate, text};

/// The rows of an attention answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// One row, averaged over layers and heads.
    Total,
    /// One row per layer, averaged over its heads.
    Layers,
    /// One row per head, layer by layer.
    Heads,
}

/// What inputs attended to: as many rows as the [`Detail`] has. A number is the sum over the
/// observed inputs of their attention probabilities; what is hidden has 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// How many rows there are.
    pub rows: u32,
    /// One row after the other. Columns are the filled slots of the input pages, then the inputs.
    pub numbers: Vec<f32>,
}

impl Attention {
    /// The columns of a row.
    pub fn row(&self, number: usize) -> &[f32] {
        let width = self.numbers.len() / self.rows as usize;
        &self.numbers[number * width..(number + 1) * width]
    }
}

/// As `forward::forward`, and a future of what the last `observed` inputs attend to. An empty
/// `adapter` is none.
#[allow(clippy::too_many_arguments)]
pub fn forward_with_attention(
    queue: u32,
    input_pages: &[u32],
    input_embeds: &[u32],
    output_pages: &[u32],
    output_embeds: &[u32],
    mask: &[u32],
    observed: u32,
    detail: Detail,
    adapter: &str,
) -> HostFuture<Attention> {
    let observation = host::forward_with_attention(
        queue,
        input_pages,
        input_embeds,
        output_pages,
        output_embeds,
        mask,
        observed,
        detail as u32,
        adapter,
    );
    HostFuture::new(observation, take_attention)
}

/// Consumes a ready future of attention.
pub fn take_attention(future: u32) -> Result<Attention> {
    let (rows, numbers) = host::take_attention(future)?;
    Ok(Attention { rows, numbers })
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
