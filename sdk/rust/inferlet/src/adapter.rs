//! Forward passes through LoRA adapters: the contract's interface `adapter`.
//!
//! `Context::with_adapter` stands on it.

use crate::abi::call;
use crate::error::Result;

mod host {
    #[link(wasm_import_module = "pie:inferlet/adapter@0.1.0")]
    unsafe extern "C" {
        #[link_name = "available-adapters"]
        pub fn available_adapters(model: *const u8, length: usize, area: *mut usize);
        #[link_name = "forward-with-adapter"]
        pub fn forward_with_adapter(
            queue: u32,
            adapter: *const u8,
            adapter_length: usize,
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
    }
}

/// Names of the adapters that are loaded for a model.
pub fn available_adapters(model: &str) -> Result<Vec<String>> {
    call(|area| unsafe { host::available_adapters(model.as_ptr(), model.len(), area) })
}

/// As `forward::forward`, through an adapter. Keys and values in the pages are those of the adapter
/// that computed them.
pub fn forward_with_adapter(
    queue: u32,
    adapter: &str,
    input_pages: &[u32],
    input_embeds: &[u32],
    output_pages: &[u32],
    output_embeds: &[u32],
    mask: &[u32],
) -> Result {
    call(|area| unsafe {
        host::forward_with_adapter(
            queue,
            adapter.as_ptr(),
            adapter.len(),
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
