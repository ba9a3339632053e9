//! KV pages out of the pool and back: the contract's interface `offload`.
//!
//! `Context::swap_out`, `swap_in` and `discard` stand on it.

use std::rc::Rc;
use std::time::Duration;

use crate::abi::call;
use crate::context::{spans, Context, UNKNOWN_TOKEN};
use crate::error::{Error, ErrorCode, Result};

mod host {
    #[link(wasm_import_module = "pie:inferlet/offload@0.1.0")]
    unsafe extern "C" {
        #[link_name = "swap-out"]
        pub fn swap_out(queue: u32, pages: *const u32, count: usize, area: *mut usize);
        #[link_name = "swap-in"]
        pub fn swap_in(queue: u32, pages: *const u32, count: usize, area: *mut usize);
        pub fn discard(queue: u32, pages: *const u32, count: usize, area: *mut usize);
        #[link_name = "kv-costs"]
        pub fn kv_costs(model: *const u8, length: usize, area: *mut usize);
        pub fn advise(
            queue: u32,
            pages: *const u32,
            count: usize,
            wait: *const u8,
            length: usize,
            area: *mut usize,
        );
        #[link_name = "note-wait"]
        pub fn note_wait(tool: *const u8, length: usize, nanoseconds: u64, area: *mut usize);
    }
}

/// Moves pages to the server's host memory; their addresses stay. Until [`swap_in`], any other use of
/// them is the error `swapped-out`.
pub fn swap_out(queue: u32, pages: &[u32]) -> Result {
    call(|area| unsafe { host::swap_out(queue, pages.as_ptr(), pages.len(), area) })
}

/// Brings pages back as they were, and discarded ones empty.
pub fn swap_in(queue: u32, pages: &[u32]) -> Result {
    call(|area| unsafe { host::swap_in(queue, pages.as_ptr(), pages.len(), area) })
}

/// Gives up the content of pages, wherever they are, and the memory behind them; the addresses stay.
pub fn discard(queue: u32, pages: &[u32]) -> Result {
    call(|area| unsafe { host::discard(queue, pages.as_ptr(), pages.len(), area) })
}

/// What keeping, moving and recomputing pages costs, as a JSON object.
pub fn kv_costs(model: &str) -> Result<String> {
    call(|area| unsafe { host::kv_costs(model.as_ptr(), model.len(), area) })
}

/// What to do with pages while the program waits for a tool, by a policy of the server: a JSON object with
/// `choice`, `pages`, `seconds`, `remaining`, `chunk`. It changes nothing. `wait` is a JSON object that may
/// have `tool`, `policy`, `elapsed_ns`, `can_discard`.
pub fn advise(queue: u32, pages: &[u32], wait: &str) -> Result<String> {
    call(|area| unsafe {
        host::advise(queue, pages.as_ptr(), pages.len(), wait.as_ptr(), wait.len(), area)
    })
}

/// Tells how long a wait for a tool has lasted, for [`advise`] to this and other instances of the user.
pub fn note_wait(tool: &str, lasted: Duration) -> Result {
    let nanoseconds = u64::try_from(lasted.as_nanos()).unwrap_or(u64::MAX);
    call(|area| unsafe { host::note_wait(tool.as_ptr(), tool.len(), nanoseconds, area) })
}

impl Context {
    /// Moves the pages to the server's host memory; until [`swap_in`](Context::swap_in) the context
    /// can't be used. Pages that forks share stay.
    ///
    /// Errors: `busy` for pages that are saved or were opened, `out-of-resources`, `limit-exceeded`.
    pub fn swap_out(&mut self) -> Result {
        self.settle()?;
        let own: Vec<Rc<u32>> =
            self.pages.iter().filter(|page| Rc::strong_count(page) == 1).cloned().collect();
        swap_out(self.queue, &spans(&own))
    }

    /// Brings the pages back. Does nothing if they are there.
    ///
    /// Errors: `out-of-resources`, `limit-exceeded`.
    pub fn swap_in(&mut self) -> Result {
        swap_in(self.queue, &spans(&self.pages))
    }

    /// Gives the pages up: the next run computes the tokens anew.
    ///
    /// Errors: `invalid-argument` if the tokens are not all known, for there is an image among them.
    pub fn discard(&mut self) -> Result {
        if self.tokens.contains(&UNKNOWN_TOKEN) {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                "a context whose tokens are not known can't be computed anew",
            ));
        }
        self.settle()?;
        let tokens = self.tokens.clone();
        self.set_length(0)?;
        self.pending.splice(0..0, tokens);
        Ok(())
    }
}
