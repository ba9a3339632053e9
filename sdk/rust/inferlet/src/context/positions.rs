//! Positions of tokens: their places, but for images that take fewer positions, and tokens given up.

use std::ops::Range;

use super::Context;
use crate::error::{invalid, Result};
use crate::images::Extent;

impl Context {
    /// Position of the token that comes next.
    pub fn next_position(&self) -> usize {
        self.len().wrapping_add_signed(self.shift)
    }

    /// Sets the position of the token that comes next: of an opened context with images that take
    /// fewer positions than places, or with tokens given up, that which it had when it was saved.
    pub fn at_position(mut self, position: usize) -> Context {
        self.shift = position as isize - self.len() as isize;
        self
    }

    /// Position of the first pending token.
    pub(super) fn pending_position(&self) -> u32 {
        self.tokens.len().wrapping_add_signed(self.shift) as u32
    }

    /// Position of the token at a place.
    ///
    /// Errors: `invalid-argument` within an image that takes fewer positions than places.
    pub(crate) fn position(&self, place: usize) -> Result<usize> {
        let mut found = place.wrapping_add_signed(self.shift);
        for image in &self.images {
            if image.places.start < place && place < image.places.end {
                return invalid(format!("token {place} is within the image {:?}", image.places));
            }
            if place < image.places.end {
                found = found.wrapping_add_signed(image.saved());
            }
        }
        Ok(found)
    }

    /// Notes that the tokens at some places are an image that takes so many positions.
    pub(super) fn note_image(&mut self, places: Range<usize>, positions: usize) {
        let image = Extent { places, positions };
        if !image.places.is_empty() && image.saved() != 0 {
            self.shift -= image.saved();
            self.images.push(image);
        }
    }

    /// Forgets the images from place `length` on, and the part of one that lies there.
    pub(super) fn cut_images(&mut self, length: usize) {
        while self.images.last().is_some_and(|image| image.places.end > length) {
            let Some(image) = self.images.pop() else { break };
            self.shift += image.saved();
            self.note_image(image.places.start..length, image.positions);
        }
    }

    /// Notes where images are now whose tokens have moved, or are gone.
    pub(super) fn move_images(&mut self, moved: impl Fn(usize) -> usize) {
        for image in &mut self.images {
            image.places = moved(image.places.start)..moved(image.places.end);
        }
        self.images.retain(|image| !image.places.is_empty());
    }
}
