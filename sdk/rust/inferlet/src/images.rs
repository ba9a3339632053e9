//! Images into embeds, for models that read them: the contract's interface `input-image`.
//! [`Context::image`](crate::Context::image) stands on it.

use crate::error::Result;
use crate::model::Model;

pub use crate::host::input_image::*;

/// How many places an image takes in a model's context, as many as so many tokens.
///
/// Errors: `unsupported` if the model reads text only, `invalid-argument` if it is no image.
pub fn tokens_of(model: &Model, image: &[u8]) -> Result<u32> {
    let (width, height) = image_size(image)?;
    num_embs_needed(model.name(), width, height)
}
