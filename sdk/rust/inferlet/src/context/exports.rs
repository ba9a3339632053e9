//! Contexts saved under a name, for other instances.

use std::ops::Range;
use std::time::Duration;

use super::{held, spans, Context};
use crate::allocate;
use crate::error::{invalid, Result};
use crate::model::Model;

impl Context {
    /// Keeps the pages under a name, for [`open`](Context::open) in this and other instances, until
    /// [`delete`](Context::delete). Other users may open it if `shared`. It ends by itself after a
    /// time without an [`open`](Context::open): by default what the operator allows.
    ///
    /// Errors: `already-exists`, `limit-exceeded` (nothing is saved then); `invalid-argument` if
    /// something is buffered or the context is empty.
    pub fn save(&mut self, name: &str, shared: bool, unused_for: Option<Duration>) -> Result {
        if !self.pending.is_empty() || self.chat.waiting() || self.tokens.is_empty() {
            return invalid(
                "only what is in the pages can be saved: fill something and flush first",
            );
        }
        self.settle()?; // what is written can't be saved
        let used = self.tokens.len().div_ceil(self.page_size());
        allocate::export_kvpage(self.queue, &spans(&self.pages[..used]), name, shared)?;
        self.read_only = self.read_only.max(used);
        let Some(time) = unused_for else {
            return Ok(());
        };
        let expires = allocate::expire_export(self.queue, name, time);
        if expires.is_err() {
            allocate::release_export(self.queue, name)?;
        }
        expires
    }

    /// Says what the pages of a range of the tokens that have run are worth when memory is short: a
    /// hint to the server. Of your pages those with a lower priority, -100 to 100, leave the prefix
    /// cache first, and move to host memory first; 0 is that of pages of which nothing was said. A
    /// priority above 0 holds for a time, one below it until the text is used again; it stays with
    /// the pages, also after the context is dropped.
    ///
    /// Errors: `invalid-argument`, `swapped-out`.
    pub fn retain(&mut self, range: Range<usize>, priority: i32, time: Duration) -> Result {
        let (size, end) = (self.page_size(), range.end.min(self.tokens.len()));
        let pages = self.pages.get(range.start / size..end.div_ceil(size)).unwrap_or_default();
        allocate::retain_kvpage(self.queue, &spans(pages), priority, time)
    }

    /// A context with the content saved under a name. The saved one stays as it is.
    ///
    /// `tokens` are those that it holds, from [`tokens`](Context::tokens) of the saved one.
    /// Errors: `not-found`; `invalid-argument` if the pages hold another number of tokens.
    pub fn open(model: &Model, name: &str, tokens: &[u32]) -> Result<Context> {
        let mut context = Context::new(model)?;
        let mapped = allocate::import_kvpage(context.queue, name)?;
        context.pages.extend(held(&mapped));
        let held: u32 = allocate::kvpage_used(context.queue, &mapped)?.iter().sum();
        if held as usize != tokens.len() {
            return invalid(format!("`{name}` holds {held} tokens, {} are given", tokens.len()));
        }
        context.tokens.extend(tokens);
        context.confirmed = context.tokens.len();
        context.read_only = context.pages.len();
        context.rerun_last_token()?;
        Ok(context)
    }

    /// Withdraws a saved context. Contexts opened from it live on.
    ///
    /// Errors: `not-found`, `permission-denied`.
    pub fn delete(model: &Model, name: &str) -> Result {
        let context = Context::new(model)?;
        allocate::release_export(context.queue, name)
    }

    /// Names of the saved contexts that may be opened.
    pub fn saved(model: &Model) -> Result<Vec<String>> {
        let context = Context::new(model)?;
        allocate::list_exports(context.queue)
    }
}
