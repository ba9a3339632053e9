//! Steps of a generation that the server is given before their tokens are known.
//!
//! A step is the forward of one token and the choice of the next. While its token is on its way,
//! nothing of the context shows it: the context keeps the state that it would have without it, and
//! takes the step over (`confirm`) or undoes it (`retract`). Two embeds take turns, so that an
//! undone step has left the hidden state before it.

use super::Context;
use crate::error::Result;
use crate::sample::{self, Sampled};
use crate::{allocate, HostFuture};

/// One step that the server has been given, after all that its context knows of.
pub(super) struct Step {
    /// The sampler that chooses the step's token, and the next.
    sampler: u32,
    /// Span of the embed with the hidden state after the step's token.
    embed: [u32; 2],
    /// Of the token after that.
    future: HostFuture<Sampled>,
    /// Pages that the context had before.
    pages: usize,
    /// The step's token, once it is known.
    token: Option<u32>,
}

impl Context {
    /// Queues the step of the token that a sampler has been asked for, unless there is no room for
    /// it; whether it has. Nothing is pending.
    pub(crate) fn look_ahead(&mut self, sampler: u32) -> Result<bool> {
        if self.tokens.len() / self.page_size() < self.read_only {
            return Ok(false); // the page would have to be copied first, which could not be undone
        }
        let pages = self.pages.len();
        match self.queue_step(sampler) {
            Ok((embed, future)) => {
                self.in_flight = true;
                self.ahead = Some(Step { sampler, embed, future, pages, token: None });
                Ok(true)
            }
            Err(error) => {
                self.undo(pages)?;
                // A program that does not run ahead might never have asked for it.
                if error.is_scarcity() {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
        }
    }

    fn queue_step(&mut self, sampler: u32) -> Result<([u32; 2], HostFuture<Sampled>)> {
        let (queue, start, size) = (self.queue, self.tokens.len(), self.page_size());
        let position = (start + self.shift) as u32;
        let embed = match self.spare {
            Some(span) => span,
            None => *self.spare.insert([allocate::alloc_emb(queue, 1)?, 1]),
        };
        self.grow(start / size + 1)?;
        self.note_inputs(start.div_ceil(size));
        let (inputs, page) = (&self.input_spans.1, *self.pages[start / size]);
        let adapter = self.adapter().unwrap_or_default();
        let future =
            sample::step(queue, sampler, position, embed[0], inputs, page, adapter).started()?;
        Ok((embed, future))
    }

    /// Notes the token of the step ahead, if there is one. All that was queued before has taken
    /// effect.
    pub(crate) fn arrived(&mut self, token: u32) {
        if let Some(step) = &mut self.ahead {
            step.token = Some(token);
            self.in_flight = true;
        }
    }

    /// Makes the step ahead part of the context, and gives the future of the token after it. `None`
    /// if there is no step, or it is undone, because the program goes on otherwise than with its
    /// token.
    pub(crate) fn confirm(&mut self, sampler: u32) -> Result<Option<HostFuture<Sampled>>> {
        let Some(step) = self.ahead.take() else { return Ok(None) };
        match step.token {
            Some(token) if step.sampler == sampler && self.pending[..] == [token] => {
                self.tokens.push(token);
                self.pending.clear();
                self.spare = self.embed.replace(step.embed);
                self.has_hidden = true;
                Ok(Some(step.future))
            }
            _ => {
                self.ahead = Some(step);
                self.retract()?;
                Ok(None)
            }
        }
    }

    /// Undoes the step ahead, if there is one. It may still run, unseen.
    pub(crate) fn retract(&mut self) -> Result {
        let Some(step) = self.ahead.take() else { return Ok(()) };
        if step.token.is_some() {
            self.in_flight = false; // but for this step
        }
        self.unseen = true;
        self.undo(step.pages)
    }

    /// Empties the slots after the context's tokens, and gives pages back that it did not have.
    fn undo(&mut self, pages: usize) -> Result {
        self.truncate_pages(self.tokens.len(), pages)
    }
}
