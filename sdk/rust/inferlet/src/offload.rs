//! KV pages out of the pool and back: the contract's interface `offload`.
//!
//! `Context::swap_out`, `swap_in` and `discard` stand on it.

use std::rc::Rc;

use crate::context::{spans, Context, UNKNOWN_TOKEN};
use crate::error::{invalid, Result};

pub use crate::host::offload::*;

impl Context {
    /// Moves the pages to the server's host memory; until [`swap_in`](Context::swap_in) the context
    /// can't be used. Pages that forks share stay.
    ///
    /// Errors: `busy` for pages that are saved or were opened, `out-of-resources`,
    /// `limit-exceeded`.
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

    /// Discards the pages: the next run recomputes the tokens.
    ///
    /// Errors: `invalid-argument` if the tokens are not all known, for there is an image among
    /// them.
    pub fn discard(&mut self) -> Result {
        if self.tokens.contains(&UNKNOWN_TOKEN) {
            return invalid("a context whose tokens are not known can't be recomputed");
        }
        self.retract();
        let tokens = self.tokens.clone();
        self.set_length(0)?;
        self.pending.splice(0..0, tokens);
        Ok(())
    }
}
