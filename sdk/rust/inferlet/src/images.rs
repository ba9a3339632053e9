//! Images into embeds, for models that read them: the contract's interface `input-image`.
//! [`Context::image`](crate::Context::image) stands on it. A token's position is its place, but for
//! images that take fewer positions than places.

use std::ops::Range;

use crate::context::Context;
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

impl Context {
    /// Position of the token that comes next.
    pub fn next_position(&self) -> usize {
        self.len().wrapping_add_signed(self.shift)
    }

    /// Sets the position of the token that comes next: of an opened context with images that take
    /// fewer positions than places, that which it had when it was saved.
    pub fn at_position(mut self, position: usize) -> Context {
        self.shift = position as isize - self.len() as isize;
        self
    }

    /// Position of the first pending token.
    pub(crate) fn pending_position(&self) -> u32 {
        self.tokens.len().wrapping_add_signed(self.shift) as u32
    }

    /// Notes that the tokens at some places are an image that takes so many positions.
    pub(crate) fn note_image(&mut self, places: Range<usize>, positions: usize) {
        let image = Extent { places, positions };
        if !image.places.is_empty() && image.saved() != 0 {
            self.shift -= image.saved();
            self.images.push(image);
        }
    }

    /// Forgets the images from place `length` on, and the part of one that lies there.
    pub(crate) fn cut_images(&mut self, length: usize) {
        while self.images.last().is_some_and(|image| image.places.end > length) {
            let Some(image) = self.images.pop() else { break };
            self.shift += image.saved();
            self.note_image(image.places.start..length, image.positions);
        }
    }
}
