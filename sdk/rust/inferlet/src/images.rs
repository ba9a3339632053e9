//! Images into embeds, for models that read them: the contract's interface `input-image`.
//! [`Context::image`](crate::Context::image) stands on it.

use crate::abi::call;
use crate::error::Result;
use crate::model::Model;

mod host {
    #[link(wasm_import_module = "pie:inferlet/input-image@0.1.0")]
    unsafe extern "C" {
        #[link_name = "num-embs-needed"]
        pub fn num_embs_needed(
            model: *const u8,
            model_length: usize,
            width: u32,
            height: u32,
            area: *mut usize,
        );
        #[link_name = "image-size"]
        pub fn image_size(image: *const u8, length: usize, area: *mut usize);
        #[link_name = "embed-img"]
        pub fn embed_img(
            queue: u32,
            image: *const u8,
            length: usize,
            positions: *const u32,
            position_count: usize,
            embeds: *const u32,
            embed_count: usize,
            area: *mut usize,
        );
    }
}

/// How many places an image takes in a model's context, as many as so many tokens.
///
/// Errors: `unsupported` if the model reads text only, `invalid-argument` if it is no image.
pub fn tokens_of(model: &Model, image: &[u8]) -> Result<u32> {
    let (width, height) = image_size(image)?;
    num_embs_needed(model.name(), width, height)
}

/// How many embeds an image of so many pixels takes.
pub fn num_embs_needed(model: &str, width: u32, height: u32) -> Result<u32> {
    call(|area| unsafe { host::num_embs_needed(model.as_ptr(), model.len(), width, height, area) })
}

/// Width and height of an image file, a PNG or JPEG, as it is to be looked at.
pub fn image_size(image: &[u8]) -> Result<(u32, u32)> {
    call(|area| unsafe { host::image_size(image.as_ptr(), image.len(), area) })
}

/// Embeds an image file. Positions and embeds are spans, of as many
/// as [`num_embs_needed`] says. What is wrong beyond the file's header fails the next `synchronize`.
pub fn embed_img(queue: u32, image: &[u8], positions: &[u32], embeds: &[u32]) -> Result {
    call(|area| unsafe {
        host::embed_img(
            queue,
            image.as_ptr(),
            image.len(),
            positions.as_ptr(),
            positions.len(),
            embeds.as_ptr(),
            embeds.len(),
            area,
        )
    })
}
