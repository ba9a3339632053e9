//! Beginnings of texts that have been computed before: the contract's interface `prefix-cache`.
//!
//! [`Context`](crate::Context) uses it by itself, unless told otherwise.

use crate::abi::call;
use crate::error::Result;

mod host {
    #[link(wasm_import_module = "pie:inferlet/prefix-cache@0.1.0")]
    unsafe extern "C" {
        #[link_name = "match-prefix"]
        pub fn match_prefix(
            queue: u32,
            adapter: *const u8,
            adapter_length: usize,
            tokens: *const u32,
            count: usize,
            area: *mut usize,
        );
        #[link_name = "insert-prefix"]
        pub fn insert_prefix(queue: u32, pages: *const u32, count: usize, area: *mut usize);
    }
}

/// Maps the pages that hold the first of `tokens`, as many full ones as there are, and returns spans of
/// them, and 0. They are immutable; `adapter` is that of the forwards that filled them, an empty text is
/// none.
///
/// If commands of somebody are computing more of these tokens just now, there are no spans, but the
/// handle of a future of when they have or have failed: wait for it, `runtime::take` it, call again.
pub fn match_prefix(queue: u32, adapter: &str, tokens: &[u32]) -> Result<(Vec<u32>, u32)> {
    call(|area| unsafe {
        host::match_prefix(
            queue,
            adapter.as_ptr(),
            adapter.len(),
            tokens.as_ptr(),
            tokens.len(),
            area,
        )
    })
}

/// Offers the pages of a text, the first ones of it in order. Those that are full, or will be once what
/// is queued has run, become immutable and are found from then on; returns how many, 0 if the server
/// does not know what the pages hold. They stay findable while nobody holds them, until their memory is
/// needed.
pub fn insert_prefix(queue: u32, pages: &[u32]) -> Result<u32> {
    call(|area| unsafe { host::insert_prefix(queue, pages.as_ptr(), pages.len(), area) })
}
