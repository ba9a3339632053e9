//! Changes of what later tokens attend to: tokens given up, hidden, or kept out of a tree.
//!
//! All but `join` and `keep` end the context's part in the prefix cache: it is no plain text any
//! more.

use std::ops::Range;
use std::rc::Rc;

use super::Context;
use crate::chat::Conversation;
use crate::error::{invalid, Result};
use crate::{allocate, forward};

impl Context {
    /// Goes on with what forks of this context have added, one behind the other.
    ///
    /// The pages of the first are taken over; the tokens of the others run with the next flush or
    /// generation. The conversation is forgotten, as by [`truncate`](Context::truncate).
    ///
    /// Errors: `invalid-argument` if there is no branch, or one does not begin with the tokens of
    /// this context.
    pub fn join(&mut self, branches: impl IntoIterator<Item = Context>) -> Result<&mut Context> {
        self.render()?;
        let mine = [&self.tokens[..], &self.pending].concat();
        let mut first = None;
        let mut added: Vec<u32> = Vec::new();
        for mut branch in branches {
            branch.render()?;
            let tokens = [&branch.tokens[..], &branch.pending].concat();
            let Some(new) = tokens.strip_prefix(&mine[..]) else {
                return invalid("branches are forks of the context, and go on where it ends");
            };
            match first {
                None => first = Some(branch),
                Some(_) => added.extend(new),
            }
        }
        let Some(mut first) = first else {
            return invalid("no branch to join");
        };
        let chat = Conversation::with(self.chat.arguments.clone());
        std::mem::swap(self, &mut first);
        self.chat = chat;
        self.pending.extend(added);
        Ok(self)
    }

    /// Gives the pages of the tokens of a range back, whole pages of them. Nothing attends to them
    /// any more; the others keep their positions, and later ones go on from theirs. Or, with
    /// `close`, the tokens behind them get the positions of their places, so that a text without an
    /// end stays within the model's context.
    ///
    /// Errors: `invalid-argument` if these are no whole pages of what has run; with `close` also if
    /// they begin or end within an image that takes fewer positions than places, `unsupported` by models whose keys can't be turned, `out-of-resources`.
    pub fn drop(&mut self, range: Range<usize>, close: bool) -> Result {
        let size = self.page_size();
        if range.start % size + range.end % size > 0
            || range.start > range.end
            || range.end > self.tokens.len()
        {
            return invalid(format!("tokens {range:?} are no whole pages of {size} tokens"));
        }
        let distance = match close {
            true => self.position(range.end)? - self.position(range.start)?,
            false => 0,
        };
        self.confirm()?;
        self.prefix_cache = false;
        let (first, last) = (range.start / size, range.end / size);
        let cut: Vec<_> = self.pages.drain(first..last).collect();
        self.read_only -= last.min(self.read_only).saturating_sub(first);
        self.input_spans.0 = usize::MAX;
        self.tokens.drain(range.clone());
        self.all_ran();
        let kept = self.hidden.iter().filter(|place| !range.contains(place));
        let moved = |place: usize| place.min(range.start.max(place.saturating_sub(range.len())));
        self.hidden = kept.copied().map(moved).collect();
        self.move_images(moved);
        self.shift += range.len() as isize - distance as isize;
        self.release(cut)?;
        if !close {
            return Ok(());
        }
        let turned = (first..self.tokens.len().div_ceil(size))
            .flat_map(|index| [self.make_writable(index), Ok(1)])
            .collect::<Result<Vec<u32>>>()?;
        if turned.is_empty() {
            return Ok(());
        }
        forward::shift_kvpage(self.queue, &turned, -(distance as i32))
    }

    /// Gives up the tokens at some places, wherever they are, and the memory that they took. The
    /// others move together and keep their positions.
    ///
    /// Errors: `invalid-argument` if a place is not among what has run; `out-of-resources`.
    pub fn evict(&mut self, places: &[usize]) -> Result {
        let length = self.tokens.len();
        let mut kept = vec![true; length];
        for &place in places {
            match kept.get_mut(place) {
                Some(kept) => *kept = false,
                None => return invalid(format!("place {place} of {length} tokens that have run")),
            }
        }
        let kept: Vec<usize> = (0..length).filter(|&place| kept[place]).collect();
        let hidden = std::mem::take(&mut self.hidden);
        let images = std::mem::take(&mut self.images);
        self.prefix_cache = false;
        self.keep(0, &kept)?;
        self.images = images;
        self.move_images(|place| kept.partition_point(|&kept| kept < place));
        let now = kept.iter().enumerate().filter(|(_, place)| hidden.contains(place));
        self.hidden = now.map(|(at, _)| at).collect();
        self.shift += (length - kept.len()) as isize;
        Ok(())
    }

    /// Lets later tokens not attend to those of a range, which stay.
    ///
    /// Errors: `invalid-argument` if they are not among what has run; `out-of-resources`: a page
    /// that others hold, too, is copied.
    pub fn hide(&mut self, range: Range<usize>) -> Result {
        self.set_hidden(range, true)
    }

    /// Takes [`hide`](Context::hide) back.
    pub fn show(&mut self, range: Range<usize>) -> Result {
        self.set_hidden(range, false)
    }

    fn set_hidden(&mut self, range: Range<usize>, hidden: bool) -> Result {
        let (length, size) = (self.tokens.len(), self.page_size());
        if range.start > range.end || range.end > length {
            return invalid(format!("tokens {range:?} of {length} that have run"));
        }
        self.confirm()?;
        self.prefix_cache = false;
        for place in range.clone() {
            match hidden {
                true => self.hidden.insert(place),
                false => self.hidden.remove(&place),
            };
        }
        let (mut pages, mut masks) = (Vec::new(), Vec::new());
        for index in range.start / size..range.end.div_ceil(size) {
            pages.extend([self.make_writable(index)?, 1]);
            let slots = self.hidden.range(index * size..(index + 1) * size);
            masks.push(slots.map(|place| 1 << (place % size)).sum());
        }
        forward::mask_kvpage(self.queue, &pages, &masks)
    }

    /// Keeps the first tokens, and of those behind them a path: of a tree that
    /// [`forward`](Context::forward) has run, the numbers of the tokens that stay, rising. Nothing
    /// runs again.
    ///
    /// Errors: `invalid-argument` if the path does not rise, or leads out of the tree, or an image
    /// that takes fewer positions than places is behind the first tokens; `out-of-resources`.
    pub fn keep(&mut self, first: usize, path: &[usize]) -> Result {
        let (length, size) = (self.tokens.len(), self.page_size());
        let rises = path.windows(2).all(|pair| pair[0] < pair[1]);
        if !rises || first + path.last().map_or(0, |last| last + 1) > length {
            return invalid(format!("the path {path:?} behind {first} of {length} tokens"));
        }
        if self.images.last().is_some_and(|image| image.places.end > first) {
            return invalid(format!("an image is behind token {first}: `evict` gives tokens up"));
        }
        self.confirm()?;
        for (target, number) in (first..).zip(path) {
            let source = first + number;
            if source == target {
                continue;
            }
            let page = self.make_writable(target / size)?;
            let origin = *self.pages[source / size];
            let slots = ((source % size) as u32, (target % size) as u32);
            allocate::copy_kvpage(self.queue, origin, slots.0, page, slots.1, 1)?;
            self.tokens[target] = self.tokens[source];
        }
        if first + path.len() < length {
            self.set_length(first + path.len())?; // behind the copies, in the same queue
        }
        Ok(())
    }

    /// The address of a page that only this context holds: a copy where others read it.
    fn make_writable(&mut self, index: usize) -> Result<u32> {
        let page = &self.pages[index];
        let is_read_only = index < self.read_only && !self.copied.contains(page.as_ref());
        if !is_read_only && Rc::strong_count(page) == 1 {
            return Ok(**page);
        }
        let used = self.page_size().min(self.tokens.len() - index * self.page_size());
        let copy = allocate::alloc_kvpage(self.queue, 1)?;
        if let Err(error) = allocate::copy_kvpage(self.queue, **page, 0, copy, 0, used as u32) {
            allocate::dealloc_kvpage(self.queue, &[copy, 1])?;
            return Err(error);
        }
        let old = std::mem::replace(&mut self.pages[index], Rc::new(copy));
        self.copied.insert(copy);
        self.input_spans.0 = usize::MAX;
        self.release(vec![old])?;
        Ok(copy)
    }
}
