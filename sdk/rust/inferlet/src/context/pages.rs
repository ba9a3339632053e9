//! A context's pages: had when they are needed, shared until they are written to, given back.

use std::rc::Rc;

use super::{Context, UNKNOWN_TOKEN};
use crate::error::Result;
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
        self.pages.extend((start..start + count).map(Rc::new));
        Ok(())
    }

    /// Makes the pages after the full ones writable: they are replaced by a copy, or given up if
    /// empty.
    pub(super) fn copy_on_write(&mut self) -> Result {
        let used = self.tokens.len() % self.page_size();
        if used > 0 {
            let last = self.tokens.len() / self.page_size();
            let copy = allocate::alloc_kvpage(self.queue, 1)?;
            let old = *self.pages[last];
            if let Err(error) = allocate::copy_kvpage(self.queue, old, 0, copy, 0, used as u32) {
                allocate::dealloc_kvpage(self.queue, &[copy, 1])?;
                return Err(error);
            }
            self.in_flight = true;
            // Pages after it are empty, and as shared as it is.
            self.pins.extend(self.pages.drain(last..));
            self.pages.push(Rc::new(copy));
        } else {
            self.pins.extend(self.pages.drain(self.tokens.len() / self.page_size()..));
        }
        self.input_spans.0 = usize::MAX;
        self.read_only = self.tokens.len() / self.page_size();
        Ok(())
    }

    /// Forgets the tokens from `length` on.
    pub(crate) fn set_length(&mut self, length: usize) -> Result {
        self.truncate_pages(length, length.div_ceil(self.page_size()))?;
        self.tokens.truncate(length);
        self.hidden.split_off(&length);
        self.cut_images(length);
        self.offered = self.offered.min(length / self.page_size());
        self.has_hidden = false;
        Ok(())
    }

    /// Empties all slots after `length` tokens, and gives the pages back from number `keep` on.
    pub(super) fn truncate_pages(&mut self, length: usize, keep: usize) -> Result {
        let (first, used) = (length / self.page_size(), length % self.page_size());
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

    /// Spans of the pages that hold tokens.
    pub(crate) fn filled_pages(&self) -> Vec<u32> {
        spans(&self.pages[..self.tokens.len().div_ceil(self.page_size())])
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

    /// Notes that all commands so far have taken effect.
    pub(crate) fn completed(&mut self) -> Result {
        self.in_flight = false;
        if self.pins.is_empty() {
            return Ok(());
        }
        let pins = std::mem::take(&mut self.pins);
        self.release(pins)
    }

    pub(super) async fn synchronize(&mut self) -> Result {
        runtime::synchronize(self.queue).await?;
        self.completed()
    }

    /// Waits, with every task of the inferlet, until all commands so far have taken effect. Needed
    /// only after an operation that was dropped halfway.
    pub(crate) fn settle(&mut self) -> Result {
        self.retract()?;
        if !self.in_flight {
            return Ok(());
        }
        let future = runtime::synchronize(self.queue).into_handle()?;
        runtime::wait(&[future])?;
        runtime::take(future)?;
        self.unseen = false;
        self.completed()
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
