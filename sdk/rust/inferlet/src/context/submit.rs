//! The buffered tokens go through the model, in parts that it can take.

use super::{held, spans, Context, UNKNOWN_TOKEN};
use crate::error::{invalid, ErrorCode, Result};
use crate::text::Distribution;
use crate::{adapter, allocate, forward, images, prefix_cache, runtime, text, HostFuture};

impl Context {
    /// Queues the pending tokens, in chunks that the model and the embed pool can take.
    pub(super) async fn submit(&mut self) -> Result {
        if self.prefix_cache && self.shift == 0 && self.pages.is_empty() && !self.pending.is_empty()
        {
            // The last token has to run in any case: that gives its hidden state.
            self.find_prefix(self.pending.len() - 1).await?;
        }
        let mut most = self.model.max_batch_tokens() as usize;
        while !self.pending.is_empty() {
            let count = most.min(self.pending.len());
            let last = count == self.pending.len();
            let pending = std::mem::take(&mut self.pending);
            let queued = self.run(&pending[..count], last, None, &[]);
            self.pending = pending;
            match queued {
                Ok(()) => {
                    self.pending.drain(..count);
                    self.offer_prefix()?;
                }
                // Embeds are few, and others use them too: smaller chunks need fewer at once.
                Err(error)
                    if error.code == ErrorCode::OutOfResources
                        && count > 1
                        && self.pages.len() * self.page_size() >= self.tokens.len() + count =>
                {
                    most = count / 2;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if !last {
                self.synchronize().await?;
            }
        }
        Ok(())
    }

    /// Begins the empty context with pages that hold some of the first `wanted` pending tokens.
    pub(super) async fn find_prefix(&mut self, wanted: usize) -> Result {
        let adapter = self.adapter.clone().unwrap_or_default();
        let found = loop {
            let tokens = &self.pending[..wanted];
            match prefix_cache::match_prefix(self.queue, &adapter, tokens)? {
                (pages, 0) => break pages,
                (_, computing) => HostFuture::new(Ok(computing), runtime::take).await?,
            }
        };
        self.pages.extend(held(&found));
        self.offered = self.pages.len();
        self.read_only = self.offered;
        self.found = self.offered * self.page_size();
        self.tokens.extend(self.pending.drain(..self.found));
        self.confirmed = self.tokens.len();
        Ok(())
    }

    /// Lets others find the pages that are full, if there are more than there were.
    pub(super) fn offer_prefix(&mut self) -> Result {
        let full = self.tokens.len() / self.page_size();
        if self.prefix_cache && full > self.offered {
            prefix_cache::insert_prefix(self.queue, &spans(&self.pages[..full]))?;
            self.offered = full;
            self.read_only = self.read_only.max(full);
        }
        Ok(())
    }

    /// Appends an image file, after what is buffered, which it runs.
    ///
    /// It takes as many places as [`images::tokens_of`] says; its tokens are [`UNKNOWN_TOKEN`]. In
    /// some models it takes fewer positions: [`next_position`](Context::next_position).
    /// Which text a model wants around it is that model's affair.
    ///
    /// Errors: `unsupported` if the model reads text only; `invalid-argument` if the file cannot be
    /// decoded (the context is as it was, flushed); `out-of-resources`.
    pub async fn image(&mut self, image: &[u8]) -> Result {
        let count = images::tokens_of(&self.model, image)?;
        self.flush().await?;
        let first = self.tokens.len();
        let positions = images::positions_of(&self.model, image)?;
        let start = allocate::alloc_emb(self.queue, count)?;
        let run = self.run_image(image, positions, [start, count]).await;
        self.note_image(first..self.tokens.len(), positions as usize);
        allocate::dealloc_emb(self.queue, &[start, count])?;
        run?;
        self.synchronize().await?;
        self.chat.unanswered = false;
        Ok(())
    }

    async fn run_image(&mut self, image: &[u8], positions: u32, embeds: [u32; 2]) -> Result {
        let [start, count] = embeds;
        images::embed_img(self.queue, image, &[self.pending_position(), positions], &embeds)?;
        // Only now is known whether the file can be decoded: if not, nothing has happened yet.
        self.synchronize().await?;
        let most = self.model.max_batch_tokens();
        for done in (0..count).step_by(most as usize) {
            let part = most.min(count - done);
            let tokens = vec![UNKNOWN_TOKEN; part as usize];
            self.run(&tokens, done + part == count, Some([start + done, part]), &[])?;
        }
        Ok(())
    }

    /// Queues tokens: embed them, run them, keep their keys and values. `output` is whether the
    /// last one's hidden state is wanted; those after `others` before it go into a span of embeds.
    /// The tokens may be in embeds already, a span of them.
    pub(super) fn run(
        &mut self,
        tokens: &[u32],
        output: bool,
        given: Option<[u32; 2]>,
        others: &[u32],
    ) -> Result {
        self.retract();
        let (queue, size) = (self.queue, self.page_size());
        let (start, end) = (self.tokens.len(), self.tokens.len() + tokens.len());
        if start / size < self.read_only {
            self.copy_on_write()?;
        }
        self.grow(end.div_ceil(size))?;
        self.note_inputs(start.div_ceil(size));
        let count = tokens.len() as u32;
        let decode = self.decode_embed()?;
        let embeds = match (given, count) {
            (Some(given), _) => given,
            (None, 1) => decode,
            (None, _) => [allocate::alloc_emb(queue, count)?, count],
        };
        let output_pages = &spans(&self.pages[start / size..end.div_ceil(size)]);
        let all = [others, &decode].concat();
        let output_embeds: &[u32] = if output { &all } else { &[] };
        self.has_hidden = false;
        let embedded = match given {
            Some(_) => Ok(()),
            None => {
                let position = self.pending_position();
                text::embed_txt(queue, tokens, &[position, count], &embeds)
            }
        };
        let inputs = &self.input_spans.1;
        let queued = embedded.and_then(|()| match self.adapter() {
            None => forward::forward(queue, inputs, &embeds, output_pages, output_embeds, &[]),
            Some(name) => {
                let (pages, outputs) = (output_pages, output_embeds);
                adapter::forward_with_adapter(queue, name, inputs, &embeds, pages, outputs, &[])
            }
        });
        if count > 1 && given.is_none() {
            allocate::dealloc_emb(queue, &embeds)?;
        }
        queued?;
        self.tokens.extend(tokens);
        self.has_hidden = output;
        Ok(())
    }

    /// Notes the spans of the first pages, as a forward's inputs.
    pub(super) fn note_inputs(&mut self, filled: usize) {
        if self.input_spans.0 != filled {
            self.input_spans = (filled, spans(&self.pages[..filled]));
        }
    }

    pub(super) fn decode_embed(&mut self) -> Result<[u32; 2]> {
        if let Some(span) = self.embed {
            return Ok(span);
        }
        let span = [allocate::alloc_emb(self.queue, 1)?, 1];
        self.embed = Some(span);
        Ok(span)
    }

    /// Runs what is pending and asks for the distribution after it.
    pub(crate) async fn next_distribution(&mut self, k: u32) -> Result<Distribution> {
        let embed = self.output_embed().await?;
        let asked: HostFuture<Distribution> = text::get_next_dist(self.queue, embed, k);
        self.outcome(asked).await
    }

    /// Runs what is pending; the embed of the hidden state after it.
    pub(crate) async fn output_embed(&mut self) -> Result<u32> {
        if self.pending.is_empty() && !self.has_hidden {
            self.rerun_last_token()?;
        }
        if let [token] = self.pending[..] {
            self.run(&[token], true, None, &[])?;
            self.pending.clear();
        } else {
            self.submit().await?;
        }
        let (Some([embed, _]), true) = (self.embed, self.has_hidden) else {
            return invalid("nothing to continue from: fill something into the context first");
        };
        Ok(embed)
    }
}
