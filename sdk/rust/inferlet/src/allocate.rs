//! KV pages, embeds and exports: the contract's interface `allocate`.

use std::time::Duration;

use crate::error::Result;
use crate::host::allocate as host;
use crate::runtime::nanoseconds;

pub use crate::host::allocate::*;

/// Sets after how long without an import an export of this user ends. The time starts again now, and
/// with each import.
///
/// Errors: `not-found`, `permission-denied`, `invalid-argument` (no time), `limit-exceeded`.
pub fn expire_export(queue: u32, name: &str, time: Duration) -> Result {
    host::expire_export(queue, name, nanoseconds(time))
}

/// Says what pages are worth when memory is short, beside the user's other pages: those of lower
/// `priority` leave first. A priority above 0 holds for a time.
///
/// Errors: `invalid-handle`, `swapped-out`, `invalid-argument` (not -100 to 100).
pub fn retain_kvpage(queue: u32, pages: &[u32], priority: i32, time: Duration) -> Result {
    host::retain_kvpage(queue, pages, priority, nanoseconds(time))
}
