//! Several tokens in one forward, with the distribution after each of them.

use super::Context;
use crate::error::Result;
use crate::task::gather;
use crate::text::Distribution;
use crate::{allocate, text};

impl Context {
    /// Runs tokens at once, behind what is buffered; the `k` most likely tokens after each of them.
    ///
    /// They join the context; [`truncate`](Context::truncate) takes back those that turn out wrong,
    /// and moves nothing. So a draft is verified in one forward, and a text is scored on a fork, by
    /// [`logprob`](Distribution::logprob) of each distribution.
    ///
    /// Errors: `out-of-resources`, `limit-exceeded`.
    pub async fn forward(&mut self, tokens: &[u32], k: u32) -> Result<Vec<Distribution>> {
        self.render()?;
        self.retract();
        self.chat.unanswered = false;
        let most = self.model.max_batch_tokens() as usize;
        let first = self.tokens.is_empty() && self.prefix_cache; // finds what others have
        if !self.pending.is_empty() && (first || self.pending.len() + tokens.len() > most) {
            self.submit().await?;
        }
        let mut found = Vec::with_capacity(tokens.len());
        for chunk in tokens.chunks(most) {
            found.extend(self.forward_at_once(chunk, k).await?);
        }
        Ok(found)
    }

    /// As `forward`, of as many tokens as one takes.
    async fn forward_at_once(&mut self, new: &[u32], k: u32) -> Result<Vec<Distribution>> {
        let length = self.len();
        let pending = std::mem::take(&mut self.pending);
        let tokens = [&pending[..], new].concat();
        let count = tokens.len() as u32;
        let positions = [self.pending_position(), count];
        let inputs = allocate::alloc_emb(self.queue, count)?;
        let first = inputs + pending.len() as u32;
        let others = [first, new.len() as u32 - 1];
        let queued =
            text::embed_txt(self.queue, &tokens, &positions, &[inputs, count]).and_then(|()| {
                let others = if others[1] > 0 { &others[..] } else { &[] };
                self.run(&tokens, true, Some([inputs, count]), others)
            });
        if let Err(error) = queued {
            self.pending = pending;
            allocate::dealloc_emb(self.queue, &[inputs, count])?;
            return Err(error);
        }
        let last = self.decode_embed()?[0];
        let embeds = (first..first + others[1]).chain([last]);
        let asked: Vec<_> = embeds.map(|embed| text::get_next_dist(self.queue, embed, k)).collect();
        allocate::dealloc_emb(self.queue, &[inputs, count])?;
        let found = self.outcome(gather(asked)).await;
        if found.is_err() {
            self.cut(length)?;
        }
        found
    }
}
