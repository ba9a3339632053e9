//! Images into embeds, for models that read them: the contract's interface `input-image`.
//! [`Context::image`](crate::Context::image) stands on it.

use std::ops::Range;

use crate::error::Result;
use crate::model::Model;

pub use crate::host::input_image::*;

/// How many places an image takes among a context's tokens.
///
/// Errors: `unsupported` if the model reads text only, `invalid-argument` if it is no image.
pub fn tokens_of(model: &Model, image: &[u8]) -> Result<u32> {
    let (width, height) = image_size(image)?;
    num_embs_needed(model.name(), width, height)
}

/// How many positions an image takes: in some models fewer than places.
///
/// Errors: as [`tokens_of`].
pub fn positions_of(model: &Model, image: &[u8]) -> Result<u32> {
    let (width, height) = image_size(image)?;
    num_positions_needed(model.name(), width, height)
}

/// An image in a context that takes fewer positions than places.
#[derive(Clone)]
pub(crate) struct Extent {
    pub(crate) places: Range<usize>,
    pub(crate) positions: usize,
}

impl Extent {
    /// How far the positions behind it lie before the places.
    pub(crate) fn saved(&self) -> isize {
        self.places.len() as isize - self.positions as isize
    }
}
