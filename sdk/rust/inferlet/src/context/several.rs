//! Several tokens in one forward, with the distribution after each of them.

use std::ops::Range;

use super::Context;
use crate::error::{Error, ErrorCode, Result};
use crate::sampler::DISTRIBUTION_SIZE;
use crate::task::join_all;
use crate::text::Distribution;
use crate::{allocate, text};

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorCode::InvalidArgument, message))
}

impl Context {
    /// Runs tokens at once, behind what is buffered; the `k` most likely tokens after each of them.
    ///
    /// They join the context; [`truncate`](Context::truncate) takes back those that turn out wrong,
    /// and moves nothing. So a draft is verified in one forward.
    ///
    /// Errors: `out-of-resources`, `limit-exceeded`.
    pub async fn forward(&mut self, tokens: &[u32], k: u32) -> Result<Vec<Distribution>> {
        self.render()?;
        self.retract()?;
        let most = self.model.max_batch_tokens() as usize;
        let first = self.tokens.is_empty() && self.prefix_cache; // finds what others have computed
        if !self.pending.is_empty() && (first || self.pending.len() + tokens.len() > most) {
            self.submit().await?;
        }
        let mut found = Vec::with_capacity(tokens.len());
        for chunk in tokens.chunks(most) {
            found.extend(self.run_several(chunk, k, &[]).await?);
        }
        Ok(found)
    }

    /// As [`forward`](Context::forward), where each token attends to stretches of the context, its
    /// own place included. Nothing is buffered, and the tokens fit into one forward.
    ///
    /// Errors: `invalid-argument` (something is buffered, stretches that do not rise or are not in
    /// the context, another number of them than of tokens), `limit-exceeded`.
    pub async fn forward_masked(
        &mut self,
        tokens: &[u32],
        k: u32,
        mask: &[Vec<Range<usize>>],
    ) -> Result<Vec<Distribution>> {
        self.render()?;
        self.retract()?;
        if !self.pending.is_empty() || mask.len() != tokens.len() {
            return invalid("flush first, and give a row of the mask for each token".to_owned());
        }
        let width = self.tokens.len() + tokens.len();
        let mut runs = Vec::new();
        for row in mask {
            runs.push(2 * row.len() as u32 + 1);
            let mut at = 0;
            for range in row {
                if range.start < at || range.end < range.start || range.end > width {
                    return invalid(format!("the stretch {range:?} of {width} tokens"));
                }
                runs.extend([(range.start - at) as u32, range.len() as u32]);
                at = range.end;
            }
            runs.push((width - at) as u32);
        }
        self.prefix_cache = false; // it is no plain text any more
        self.run_several(tokens, k, &runs).await
    }

    /// Runs what is pending and tokens, as many as one forward takes.
    async fn run_several(
        &mut self,
        new: &[u32],
        k: u32,
        mask: &[u32],
    ) -> Result<Vec<Distribution>> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let pending = std::mem::take(&mut self.pending);
        let tokens = [&pending[..], new].concat();
        let count = tokens.len() as u32;
        let inputs = allocate::alloc_emb(self.queue, count)?;
        let first = inputs + pending.len() as u32;
        let others = [first, new.len() as u32 - 1];
        let position = (self.tokens.len() + self.shift) as u32;
        let queued = text::embed_txt(self.queue, &tokens, &[position, count], &[inputs, count])
            .and_then(|()| {
                let others = if others[1] > 0 { &others[..] } else { &[] };
                self.run_masked(&tokens, true, Some([inputs, count]), mask, others)
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
        let mut found = Vec::with_capacity(new.len());
        for answer in join_all(asked).await {
            found.push(answer?);
        }
        self.completed()?;
        Ok(found)
    }

    /// Log-probabilities of texts that might follow, a number for each token of each text. They run
    /// at once, on forks; the context stays as it is.
    ///
    /// Errors: `invalid-argument` if the context is empty, or a continuation is.
    pub async fn score(&mut self, continuations: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        self.render()?;
        if continuations.iter().any(Vec::is_empty) {
            return invalid("an empty continuation has no log-probability".to_owned());
        }
        if self.pending.len() > 1 {
            self.submit().await?;
        }
        let mut forks = Vec::new();
        for _ in continuations {
            forks.push(self.fork()?);
        }
        let scored = forks.into_iter().zip(continuations).map(|(fork, tokens)| fork.logs(tokens));
        join_all(scored).await.into_iter().collect()
    }

    /// Log-probabilities of a continuation's tokens; the context goes on with it.
    async fn logs(mut self, continuation: &[u32]) -> Result<Vec<f32>> {
        self.rerun_last_token()?;
        let Some(last) = self.pending.pop() else {
            return invalid("nothing to continue from: fill something in first".to_owned());
        };
        let tokens: Vec<u32> = [last]
            .into_iter()
            .chain(continuation[..continuation.len() - 1].iter().copied())
            .collect();
        let before = self.tokens.len();
        let mut size = DISTRIBUTION_SIZE;
        loop {
            let found = self.forward(&tokens, size).await?;
            let logs: Vec<f32> =
                found.iter().zip(continuation).map(|(d, &token)| d.logprob(token)).collect();
            if size >= self.model.vocab_size() || logs.iter().all(|log| log.is_finite()) {
                return Ok(logs);
            }
            self.truncate(before)?;
            size = self.model.vocab_size(); // less likely than those: ask for all
        }
    }

    /// Gives the pages of the tokens of a range back, whole pages of them. Nothing attends to them
    /// any more; the others keep their positions, and later ones go on from theirs.
    ///
    /// Errors: `invalid-argument` if these are no whole pages of what has run.
    pub fn drop_tokens(&mut self, range: Range<usize>) -> Result {
        let size = self.page_size();
        if range.start % size + range.end % size > 0
            || range.start > range.end
            || range.end > self.tokens.len()
        {
            return invalid(format!("tokens {range:?} are no whole pages of {size} tokens"));
        }
        self.settle()?;
        self.prefix_cache = false;
        let (first, last) = (range.start / size, range.end / size);
        let cut: Vec<_> = self.pages.drain(first..last).collect();
        self.read_only -= last.min(self.read_only).saturating_sub(first);
        self.input_spans.0 = usize::MAX;
        self.shift += range.len();
        self.tokens.drain(range);
        self.release(cut)
    }

    /// Position of the token that comes next.
    pub fn next_position(&self) -> usize {
        self.len() + self.shift
    }
}
