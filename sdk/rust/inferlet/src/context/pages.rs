//! A context's pages: had when they are needed, shared until they are written to, given back.

use std::future::Future;
use std::rc::Rc;

use super::{Context, UNKNOWN_TOKEN};
use crate::error::{Error, ErrorCode, Result};
use crate::{allocate, runtime};

impl Context {
    /// Allocates pages up to `need`, and some of those that the generation will want anyway.
    pub(super) fn grow(&mut self, need: usize) -> Result {
        let have = self.pages.len();
        if need <= have {
            return Ok(());
        }
        let wanted = self.limit.div_ceil(self.page_size());
        let count = (need.max(wanted.min(need + have / 8)) - have) as u32;
        let start = allocate::alloc_kvpage(self.queue, count)?;
        self.pages.extend(held(&[start, count]));
        Ok(())
    }

    /// Makes the pages after the full ones writable: they are replaced by a copy, or given up if
    /// empty.
    pub(super) fn copy_on_write(&mut self) -> Result {
        let (last, used) =
            (self.tokens.len() / self.page_size(), self.tokens.len() % self.page_size());
        let mut copied = None;
        if used > 0 {
            let copy = allocate::alloc_kvpage(self.queue, 1)?;
            let old = *self.pages[last];
            if let Err(error) = allocate::copy_kvpage(self.queue, old, 0, copy, 0, used as u32) {
                allocate::dealloc_kvpage(self.queue, &[copy, 1])?;
                return Err(error);
            }
            copied = Some(Rc::new(copy));
        }
        // Pages after it are empty, and as shared as it is.
        let old = self.pages.split_off(last);
        self.pages.extend(copied);
        self.input_spans.0 = usize::MAX;
        self.read_only = last;
        self.release(old)
    }

    /// Forgets the tokens from `length` on.
    pub(crate) fn set_length(&mut self, length: usize) -> Result {
        self.truncate_pages(length)?;
        self.tokens.truncate(length);
        self.confirmed = self.confirmed.min(length);
        self.cut_images(length);
        self.offered = self.offered.min(length / self.page_size());
        self.has_hidden = false;
        Ok(())
    }

    /// Empties all slots after `length` tokens, and gives back the pages after these.
    fn truncate_pages(&mut self, length: usize) -> Result {
        let (first, used) = (length / self.page_size(), length % self.page_size());
        let keep = length.div_ceil(self.page_size());
        if first < keep.min(self.pages.len()) {
            let page = &self.pages[first];
            if first < self.read_only || Rc::strong_count(page) > 1 {
                // Others still read the slots that are cut off here.
                self.read_only = self.read_only.max(first + 1);
            } else {
                allocate::truncate_kvpage(self.queue, &[**page, 1], &[used as u32])?;
            }
        }
        if self.pages.len() > keep {
            let cut = self.pages.split_off(keep);
            self.release(cut)?;
            self.read_only = self.read_only.min(keep);
            self.input_spans.0 = usize::MAX;
        }
        Ok(())
    }

    /// Takes the last token back into the buffer, so that the next run gives its hidden state.
    pub(super) fn rerun_last_token(&mut self) -> Result {
        if let (true, Some(&last)) = (self.pending.is_empty(), self.tokens.last()) {
            if last == UNKNOWN_TOKEN {
                return Ok(());
            }
            self.set_length(self.tokens.len() - 1)?;
            self.pending.push(last);
        }
        Ok(())
    }

    /// Gives those pages back that no other context holds.
    pub(super) fn release(&mut self, pages: Vec<Rc<u32>>) -> Result {
        let free: Vec<Rc<u32>> =
            pages.into_iter().filter_map(Rc::into_inner).map(Rc::new).collect();
        match free.is_empty() {
            true => Ok(()),
            false => allocate::dealloc_kvpage(self.queue, &spans(&free)),
        }
    }

    /// The value of a future behind all commands so far. If commands have failed, their tokens are
    /// pending again.
    pub(crate) async fn outcome<T>(&mut self, asked: impl Future<Output = Result<T>>) -> Result<T> {
        let found = asked.await;
        match &found {
            Ok(_) => self.confirmed = self.tokens.len(),
            Err(error) => self.recover(error),
        }
        found
    }

    pub(super) async fn synchronize(&mut self) -> Result {
        let asked = runtime::synchronize(self.queue);
        self.outcome(asked).await
    }

    /// After an error of a future: if commands before it have failed, their tokens wait again. An
    /// image whose commands have failed is gone.
    pub(crate) fn recover(&mut self, error: &Error) {
        if !matches!(error.code, ErrorCode::Internal | ErrorCode::FailedDependency) {
            return; // of the future alone
        }
        // Errors are those of what failed, or all is gone with a lost worker.
        self.retract();
        let lost = self.tokens[self.confirmed..].to_vec();
        if !lost.is_empty() {
            let _ = self.set_length(self.confirmed);
            self.pending.splice(0..0, lost.into_iter().filter(|&token| token != UNKNOWN_TOKEN));
        }
        let _ = self.settle(); // until then the queue takes no commands
    }

    /// Ends a run, and waits, with every task of the inferlet, until all commands so far have taken
    /// effect.
    pub(crate) fn settle(&mut self) -> Result {
        self.retract();
        let future = runtime::synchronize(self.queue).into_handle()?;
        runtime::wait(&[future])?;
        runtime::take(future).inspect_err(|error| self.recover(error))?;
        self.confirmed = self.tokens.len();
        Ok(())
    }

    /// Ends a run, and waits for what may still fail: only after an operation that was dropped
    /// halfway.
    pub(super) fn confirm(&mut self) -> Result {
        self.retract();
        match self.confirmed < self.tokens.len() {
            true => self.settle(),
            false => Ok(()),
        }
    }
}

/// Addresses in order as `[start, count, start, count, ...]`.
pub(crate) fn spans(addresses: &[Rc<u32>]) -> Vec<u32> {
    let mut out: Vec<u32> = Vec::new();
    for address in addresses {
        match out[..] {
            [.., start, ref mut count] if start + *count == **address => *count += 1,
            _ => out.extend([**address, 1]),
        }
    }
    out
}

/// The pages that spans stand for, which one context holds.
pub(crate) fn held(spans: &[u32]) -> impl Iterator<Item = Rc<u32>> + '_ {
    spans.chunks_exact(2).flat_map(|span| (span[0]..span[0] + span[1]).map(Rc::new))
}
