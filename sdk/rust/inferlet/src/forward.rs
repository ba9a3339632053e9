//! The transformer's forward pass: the contract's interface `forward`.

use crate::abi::call;
use crate::error::Result;

mod host {
    #[link(wasm_import_module = "pie:inferlet/forward@0.1.0")]
    unsafe extern "C" {
        pub fn forward(
            queue: u32,
            input_pages: *const u32,
            input_page_count: usize,
            input_embeds: *const u32,
            input_embed_count: usize,
            output_pages: *const u32,
            output_page_count: usize,
            output_embeds: *const u32,
            output_embed_count: usize,
            mask: *const u32,
            mask_length: usize,
            area: *mut usize,
        );
        #[link_name = "mask-kvpage"]
        pub fn mask_kvpage(
            queue: u32,
            pages: *const u32,
            page_count: usize,
            masks: *const u32,
            mask_count: usize,
            area: *mut usize,
        );
    }
}

/// Runs the model over the input embeds. All lists but `mask` are spans; an empty `mask` means the
/// causal rule by position. See `sdk/wit/inferlet.wit`.
pub fn forward(
    queue: u32,
    input_pages: &[u32],
    input_embeds: &[u32],
    output_pages: &[u32],
    output_embeds: &[u32],
    mask: &[u32],
) -> Result {
    call(|area| unsafe {
        host::forward(
            queue,
            input_pages.as_ptr(),
            input_pages.len(),
            input_embeds.as_ptr(),
            input_embeds.len(),
            output_pages.as_ptr(),
            output_pages.len(),
            output_embeds.as_ptr(),
            output_embeds.len(),
            mask.as_ptr(),
            mask.len(),
            area,
        )
    })
}

/// Sets which filled slots of pages are masked: one word a page, bit `i` set hides slot `i`.
pub fn mask_kvpage(queue: u32, pages: &[u32], masks: &[u32]) -> Result {
    call(|area| unsafe {
        host::mask_kvpage(queue, pages.as_ptr(), pages.len(), masks.as_ptr(), masks.len(), area)
    })
}
