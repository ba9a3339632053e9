//! KV pages and embeds.
//!
//! One function for each of the contract's interface `allocate`; see `sdk/wit/inferlet.wit` for their
//! meaning and errors. Pages and embeds are addresses, and lists of them are *spans*:
//! `[start, count, start, count, ...]`.

use crate::abi::call;
use crate::error::Result;

mod host {
    #[link(wasm_import_module = "pie:inferlet/allocate@0.1.0")]
    unsafe extern "C" {
        #[link_name = "alloc-kvpage"]
        pub fn alloc_kvpage(queue: u32, count: u32, area: *mut usize);
        #[link_name = "dealloc-kvpage"]
        pub fn dealloc_kvpage(queue: u32, pages: *const u32, count: usize, area: *mut usize);
        #[link_name = "export-kvpage"]
        pub fn export_kvpage(
            queue: u32,
            pages: *const u32,
            count: usize,
            name: *const u8,
            length: usize,
            shared: u32,
            area: *mut usize,
        );
        #[link_name = "import-kvpage"]
        pub fn import_kvpage(queue: u32, name: *const u8, length: usize, area: *mut usize);
        #[link_name = "list-exports"]
        pub fn list_exports(queue: u32, area: *mut usize);
        #[link_name = "release-export"]
        pub fn release_export(queue: u32, name: *const u8, length: usize, area: *mut usize);
        #[link_name = "copy-kvpage"]
        pub fn copy_kvpage(
            queue: u32,
            source_page: u32,
            source_slot: u32,
            target_page: u32,
            target_slot: u32,
            count: u32,
            area: *mut usize,
        );
        #[link_name = "kvpage-used"]
        pub fn kvpage_used(queue: u32, pages: *const u32, count: usize, area: *mut usize);
        #[link_name = "truncate-kvpage"]
        pub fn truncate_kvpage(
            queue: u32,
            pages: *const u32,
            count: usize,
            used: *const u32,
            used_count: usize,
            area: *mut usize,
        );
        #[link_name = "alloc-emb"]
        pub fn alloc_emb(queue: u32, count: u32, area: *mut usize);
        #[link_name = "dealloc-emb"]
        pub fn dealloc_emb(queue: u32, embeds: *const u32, count: usize, area: *mut usize);
        #[link_name = "copy-emb"]
        pub fn copy_emb(
            queue: u32,
            sources: *const u32,
            source_count: usize,
            targets: *const u32,
            target_count: usize,
            positions: *const u32,
            position_count: usize,
            area: *mut usize,
        );
        #[link_name = "pool-stats"]
        pub fn pool_stats(queue: u32, area: *mut usize);
    }
}

/// Allocates pages, all slots empty, and returns the first address.
pub fn alloc_kvpage(queue: u32, count: u32) -> Result<u32> {
    call(|area| unsafe { host::alloc_kvpage(queue, count, area) })
}

/// Frees pages once the commands queued before have taken effect; the addresses end at once.
pub fn dealloc_kvpage(queue: u32, pages: &[u32]) -> Result {
    call(|area| unsafe { host::dealloc_kvpage(queue, pages.as_ptr(), pages.len(), area) })
}

/// Publishes pages under a name. They become immutable.
pub fn export_kvpage(queue: u32, pages: &[u32], name: &str, shared: bool) -> Result {
    call(|area| unsafe {
        host::export_kvpage(
            queue,
            pages.as_ptr(),
            pages.len(),
            name.as_ptr(),
            name.len(),
            shared.into(),
            area,
        )
    })
}

/// Maps exported pages into this instance, read-only, and returns spans.
pub fn import_kvpage(queue: u32, name: &str) -> Result<Vec<u32>> {
    call(|area| unsafe { host::import_kvpage(queue, name.as_ptr(), name.len(), area) })
}

/// Names of the exports of the queue's model that this user may import.
pub fn list_exports(queue: u32) -> Result<Vec<String>> {
    call(|area| unsafe { host::list_exports(queue, area) })
}

/// Withdraws an export of this user. Pages already mapped stay.
pub fn release_export(queue: u32, name: &str) -> Result {
    call(|area| unsafe { host::release_export(queue, name.as_ptr(), name.len(), area) })
}

/// Copies `count` slots from one page to another.
pub fn copy_kvpage(
    queue: u32,
    source_page: u32,
    source_slot: u32,
    target_page: u32,
    target_slot: u32,
    count: u32,
) -> Result {
    call(|area| unsafe {
        host::copy_kvpage(queue, source_page, source_slot, target_page, target_slot, count, area)
    })
}

/// Number of filled slots of each page, as if every queued command had run.
pub fn kvpage_used(queue: u32, pages: &[u32]) -> Result<Vec<u32>> {
    call(|area| unsafe { host::kvpage_used(queue, pages.as_ptr(), pages.len(), area) })
}

/// Empties the slots of pages from a number on: page `i` of the list keeps its first `used[i]` slots.
/// So steps that were queued ahead in vain are undone.
pub fn truncate_kvpage(queue: u32, pages: &[u32], used: &[u32]) -> Result {
    call(|area| unsafe {
        host::truncate_kvpage(queue, pages.as_ptr(), pages.len(), used.as_ptr(), used.len(), area)
    })
}

/// Allocates embeds and returns the first address.
pub fn alloc_emb(queue: u32, count: u32) -> Result<u32> {
    call(|area| unsafe { host::alloc_emb(queue, count, area) })
}

/// Frees embeds once the commands queued before have taken effect; the addresses end at once.
pub fn dealloc_emb(queue: u32, embeds: &[u32]) -> Result {
    call(|area| unsafe { host::dealloc_emb(queue, embeds.as_ptr(), embeds.len(), area) })
}

/// Copies embeds, one by one; a source may be named several times. `positions` are spans, those of the
/// targets; without any, each keeps its source's. All sources are read before a target is written.
pub fn copy_emb(queue: u32, sources: &[u32], targets: &[u32], positions: &[u32]) -> Result {
    call(|area| unsafe {
        host::copy_emb(
            queue,
            sources.as_ptr(),
            sources.len(),
            targets.as_ptr(),
            targets.len(),
            positions.as_ptr(),
            positions.len(),
            area,
        )
    })
}

/// State of the queue's model's pools, as a JSON object.
pub fn pool_stats(queue: u32) -> Result<String> {
    call(|area| unsafe { host::pool_stats(queue, area) })
}
