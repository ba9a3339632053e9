//! A context: tokens whose keys and values stay in the server's KV pages, to be continued and forked.

use std::rc::Rc;

use crate::chat::{Conversation, Message};
use crate::error::{Error, ErrorCode, Result};
use crate::generation::Generator;
use crate::model::Model;
use crate::sampler::Sampler;
use crate::text::Distribution;
use crate::{adapter, allocate, forward, images, prefix_cache, runtime, text, HostFuture};

mod ahead;

/// Stands in a context's tokens for each place of an image.
pub const UNKNOWN_TOKEN: u32 = u32::MAX;

/// A text that grows: prompts are filled in, tokens are generated, forks share what is there.
///
/// What is filled in waits in a buffer until [`flush`](Context::flush) or the next generation, which
/// runs it through the model. Full pages are never written again, so forks share them; the last,
/// partial page is copied when one of them first writes to it. Commands of different contexts are
/// batched together: run many with `join_all`.
///
/// A context gives its pages back when it is dropped.
pub struct Context {
    model: Model,
    /// LoRA adapter that everything goes through.
    adapter: Option<Rc<str>>,
    pub(crate) queue: u32,
    /// Span of the embed that decoding uses, for the token and for the hidden state after it.
    embed: Option<[u32; 2]>,
    /// Span of the embed that steps queued ahead use in turn with the other.
    spare: Option<[u32; 2]>,
    /// Addresses of the pages. A page that another context holds as well has a count above one.
    pub(crate) pages: Vec<Rc<u32>>,
    /// Tokens in the pages.
    pub(crate) tokens: Vec<u32>,
    /// Tokens that follow, not in the pages yet.
    pub(crate) pending: Vec<u32>,
    /// Whether to share what is computed with the user's other inferlets.
    prefix_cache: bool,
    /// Pages that the server has been offered for others to find.
    cached: usize,
    /// The last, partial page is shared: copy it before writing.
    borrowed: bool,
    /// Pages held until the copies from them are done.
    pins: Vec<Rc<u32>>,
    /// The embed holds the last token's hidden state.
    has_hidden: bool,
    /// Commands are queued that nobody has seen the end of.
    in_flight: bool,
    /// A step at the server that nothing else here knows of.
    ahead: Option<ahead::Step>,
    /// A step that was undone may still run, and write.
    unseen: bool,
    /// Spans of the filled pages, and how many pages these are.
    input_spans: (usize, Vec<u32>),
    /// Tokens that the generation under way may reach.
    limit: usize,
    chat: Conversation,
}

impl Context {
    /// An empty context of a model.
    pub fn new(model: &Model) -> Result<Context> {
        Ok(Context {
            model: model.clone(),
            adapter: None,
            queue: runtime::create_queue(model.name())?,
            embed: None,
            spare: None,
            pages: Vec::new(),
            tokens: Vec::new(),
            pending: Vec::new(),
            prefix_cache: true,
            cached: 0,
            borrowed: false,
            pins: Vec::new(),
            has_hidden: false,
            in_flight: false,
            ahead: None,
            unseen: false,
            input_spans: (0, Vec::new()),
            limit: 0,
            chat: Conversation::default(),
        })
    }

    /// An empty context that goes through a LoRA adapter, one of [`adapter::available_adapters`].
    pub fn with_adapter(model: &Model, adapter: &str) -> Result<Context> {
        let mut context = Context::new(model)?;
        context.adapter = Some(adapter.into());
        Ok(context)
    }

    /// Sets whether an empty context begins with what this user's inferlets have computed of the same
    /// text, and lets them find what is computed here; it does unless told. Full pages then can't be
    /// changed by functions of [`allocate`] and [`forward`].
    pub fn prefix_cache(mut self, wanted: bool) -> Context {
        self.prefix_cache = wanted;
        self
    }

    /// The name of its adapter, if it has one.
    pub fn adapter(&self) -> Option<&str> {
        self.adapter.as_deref()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its command queue, for the raw functions.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Tokens in the pages; [`buffer`](Context::buffer) comes on top.
    pub fn seq_len(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens in the pages.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that wait for the next flush or generation. Chat messages become tokens only then.
    pub fn buffer(&self) -> &[u32] {
        &self.pending
    }

    /// Tokens in all.
    pub fn len(&self) -> usize {
        self.tokens.len() + self.pending.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends text. Special tokens written in it are recognised. An empty context starts with the
    /// model's beginning-of-sequence token, if its tokenizer adds one.
    pub fn fill(&mut self, text: &str) -> Result<&mut Context> {
        self.render(false)?;
        let tokens = self.model.tokenizer().encode(text)?;
        if self.is_empty() && tokens.first() != self.model.bos_token().as_ref() {
            self.pending.extend(self.model.bos_token());
        }
        self.pending.extend(tokens);
        Ok(self)
    }

    /// Appends tokens as they are.
    pub fn append(&mut self, tokens: &[u32]) -> Result<&mut Context> {
        self.render(false)?;
        self.pending.extend(tokens);
        Ok(self)
    }

    /// Appends a system message in the model's chat format.
    pub fn system(&mut self, message: &str) -> Result<&mut Context> {
        self.message(Message::system(message))
    }

    /// Appends a user message in the model's chat format.
    pub fn user(&mut self, message: &str) -> Result<&mut Context> {
        self.message(Message::user(message))
    }

    /// Appends an assistant message in the model's chat format: a turn of the past.
    pub fn assistant(&mut self, message: &str) -> Result<&mut Context> {
        self.message(Message::assistant(message))
    }

    /// Appends what starts the assistant's turn. A generation after a message does so by itself.
    pub fn cue(&mut self) -> Result<&mut Context> {
        let started = self.len();
        self.pending.extend(self.chat.render(&self.model, true, started)?);
        Ok(self)
    }

    /// Ends the assistant's turn with the model's stop token.
    pub fn seal(&mut self) -> Result<&mut Context> {
        self.render(false)?;
        self.pending.extend(self.model.stop_tokens().first());
        self.chat.seal();
        Ok(self)
    }

    fn message(&mut self, message: Message) -> Result<&mut Context> {
        if let Some(start) = self.chat.open_turn() {
            let said = [&self.tokens[..], &self.pending[..]].concat().split_off(start);
            self.chat.close_turn(self.model.tokenizer().decode(&said)?);
        }
        self.chat.add(message);
        Ok(self)
    }

    /// Turns the messages that wait into tokens.
    fn render(&mut self, cue: bool) -> Result {
        if self.chat.waiting() {
            let started = self.len();
            self.pending.extend(self.chat.render(&self.model, cue, started)?);
        }
        Ok(())
    }

    /// Runs what is buffered through the model, and waits until it is in the pages.
    ///
    /// Errors: `out-of-resources` if there are not enough pages or embeds.
    pub async fn flush(&mut self) -> Result {
        self.retract()?;
        self.render(false)?;
        self.submit().await?;
        self.synchronize().await
    }

    /// Continues the context; see [`Generator`] for the ways to read it. Nothing runs before.
    pub fn generate(&mut self, sampler: Sampler) -> Generator<'_> {
        Generator::new(self, sampler)
    }

    /// The `k` most likely next tokens after all that is filled in.
    ///
    /// Errors: `invalid-argument` if the context is empty.
    pub async fn distribution(&mut self, k: u32) -> Result<Distribution> {
        self.render(false)?;
        self.next_distribution(k).await
    }

    /// A second context with the same content, that shares the pages.
    ///
    /// The fork runs the last token anew when it generates: that gives it a hidden state of its own.
    pub fn fork(&mut self) -> Result<Context> {
        self.settle()?;
        let mut other = Context::new(&self.model)?;
        other.adapter.clone_from(&self.adapter);
        other.prefix_cache = self.prefix_cache;
        other.cached = self.cached;
        other.pages.clone_from(&self.pages);
        other.tokens.clone_from(&self.tokens);
        other.pending.clone_from(&self.pending);
        other.chat = self.chat.clone();
        other.borrowed = true;
        self.borrowed = true;
        other.rerun_last_token()?;
        Ok(other)
    }

    /// Keeps the first `length` tokens only. Chat messages that wait are dropped.
    pub fn truncate(&mut self, length: usize) -> Result {
        self.chat = Conversation::default();
        if length >= self.tokens.len() {
            self.pending.truncate(length - self.tokens.len());
            if self.has_hidden || !self.pending.is_empty() {
                return Ok(());
            }
            self.settle()?; // a fork whose own tokens are all cut has no hidden state of its own
        } else {
            self.settle()?;
            self.pending.clear();
            self.set_length(length)?;
        }
        self.rerun_last_token()
    }

    /// Keeps the pages under a name, for [`open`](Context::open) in this and other instances, until
    /// [`delete`](Context::delete). Other users may open it if `shared`.
    ///
    /// Errors: `already-exists`; `invalid-argument` if something is buffered or the context is empty.
    pub fn save(&mut self, name: &str, shared: bool) -> Result {
        if !self.pending.is_empty() || self.chat.waiting() || self.tokens.is_empty() {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                "only what is in the pages can be saved: fill something and flush first",
            ));
        }
        self.retract()?;
        self.in_flight |= self.unseen; // what is written can't be saved
        self.settle()?;
        let used = self.tokens.len().div_ceil(self.page_size());
        allocate::export_kvpage(self.queue, &spans(&self.pages[..used]), name, shared)?;
        self.borrowed = true;
        Ok(())
    }

    /// A context with the content saved under a name. The saved one stays as it is.
    ///
    /// `tokens` are those that it holds, from [`tokens`](Context::tokens) of the saved one.
    /// Errors: `not-found`; `invalid-argument` if the pages hold another number of tokens.
    pub fn open(model: &Model, name: &str, tokens: &[u32]) -> Result<Context> {
        let mut context = Context::new(model)?;
        let mapped = allocate::import_kvpage(context.queue, name)?;
        for span in mapped.chunks_exact(2) {
            context.pages.extend((span[0]..span[0] + span[1]).map(Rc::new));
        }
        let held: u32 = allocate::kvpage_used(context.queue, &mapped)?.iter().sum();
        if held as usize != tokens.len() {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("`{name}` holds {held} tokens, {} are given", tokens.len()),
            ));
        }
        context.tokens.extend(tokens);
        context.borrowed = true;
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

    fn page_size(&self) -> usize {
        self.model.page_size() as usize
    }

    /// Queues the pending tokens, in chunks that the model and the embed pool can take.
    async fn submit(&mut self) -> Result {
        if self.prefix_cache && self.pages.is_empty() && !self.pending.is_empty() {
            self.find_prefix().await?;
        }
        let mut most = self.model.max_batch_tokens() as usize;
        while !self.pending.is_empty() {
            let count = most.min(self.pending.len());
            let last = count == self.pending.len();
            let pending = std::mem::take(&mut self.pending);
            let queued = self.forward(&pending[..count], last);
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

    /// Begins the empty context with pages that hold the first of the pending tokens.
    async fn find_prefix(&mut self) -> Result {
        // The last token has to run in any case: that gives its hidden state.
        let wanted = self.pending.len() - 1;
        let adapter = self.adapter.clone().unwrap_or_default();
        let found = loop {
            let tokens = &self.pending[..wanted];
            match prefix_cache::match_prefix(self.queue, &adapter, tokens)? {
                (pages, 0) => break pages,
                (_, computing) => HostFuture::new(Ok(computing), runtime::take).await?,
            }
        };
        for span in found.chunks_exact(2) {
            self.pages.extend((span[0]..span[0] + span[1]).map(Rc::new));
        }
        self.cached = self.pages.len();
        self.tokens.extend(self.pending.drain(..self.cached * self.page_size()));
        Ok(())
    }

    /// Lets others find the pages that are full, if there are more than there were.
    fn offer_prefix(&mut self) -> Result {
        let full = self.tokens.len() / self.page_size();
        if self.prefix_cache && full > self.cached {
            prefix_cache::insert_prefix(self.queue, &spans(&self.pages[..full]))?;
            self.cached = full;
        }
        Ok(())
    }

    /// Appends an image file, a PNG or JPEG, after what is buffered, which it runs.
    ///
    /// It takes as many places as [`images::tokens_of`] says; its tokens are [`UNKNOWN_TOKEN`]. Which text a
    /// model wants around it is that model's affair.
    ///
    /// Errors: `unsupported` if the model reads text only; `invalid-argument` if the file cannot be
    /// decoded (the context is as it was, flushed); `out-of-resources`.
    pub async fn image(&mut self, image: &[u8]) -> Result {
        let count = images::tokens_of(&self.model, image)?;
        self.flush().await?;
        let start = allocate::alloc_emb(self.queue, count)?;
        let run = self.run_image(image, start, count).await;
        allocate::dealloc_emb(self.queue, &[start, count])?;
        run?;
        self.synchronize().await
    }

    async fn run_image(&mut self, image: &[u8], start: u32, count: u32) -> Result {
        let first = self.tokens.len() as u32;
        images::embed_img(self.queue, image, &[first, count], &[start, count])?;
        // Only now is known whether the file can be decoded: if not, nothing has happened yet.
        runtime::synchronize(self.queue).await?;
        let most = self.model.max_batch_tokens();
        for done in (0..count).step_by(most as usize) {
            let part = most.min(count - done);
            let tokens = vec![UNKNOWN_TOKEN; part as usize];
            self.run(&tokens, done + part == count, Some([start + done, part]))?;
        }
        Ok(())
    }

    /// Queues tokens: embed them, run them, keep their keys and values. `output` is whether the last
    /// one's hidden state is wanted.
    fn forward(&mut self, tokens: &[u32], output: bool) -> Result {
        self.run(tokens, output, None)
    }

    /// As `forward`; the tokens may be in embeds already, a span of them.
    fn run(&mut self, tokens: &[u32], output: bool, given: Option<[u32; 2]>) -> Result {
        self.retract()?;
        let (queue, size) = (self.queue, self.page_size());
        let (start, end) = (self.tokens.len(), self.tokens.len() + tokens.len());
        if self.borrowed {
            self.own_last_page()?;
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
        let single;
        let several;
        let output_pages: &[u32] = match &self.pages[start / size..end.div_ceil(size)] {
            [page] => {
                single = [**page, 1];
                &single
            }
            pages => {
                several = spans(pages);
                &several
            }
        };
        let output_embeds: &[u32] = if output { &decode } else { &[] };
        self.in_flight = true;
        self.has_hidden = false;
        let embedded = match given {
            Some(_) => Ok(()),
            None => text::embed_txt(queue, tokens, &[start as u32, count], &embeds),
        };
        let queued =
            embedded.and_then(|()| self.queue_forward(&embeds, output_pages, output_embeds));
        if count > 1 && given.is_none() {
            allocate::dealloc_emb(queue, &embeds)?;
        }
        queued?;
        self.tokens.extend(tokens);
        self.has_hidden = output;
        Ok(())
    }

    /// Notes the spans of the first pages, as a forward's inputs.
    fn note_inputs(&mut self, filled: usize) {
        if self.input_spans.0 != filled {
            self.input_spans = (filled, spans(&self.pages[..filled]));
        }
    }

    fn queue_forward(&self, embeds: &[u32], pages: &[u32], outputs: &[u32]) -> Result {
        let (queue, inputs) = (self.queue, &self.input_spans.1);
        match self.adapter() {
            None => forward::forward(queue, inputs, embeds, pages, outputs, &[]),
            Some(name) => {
                adapter::forward_with_adapter(queue, name, inputs, embeds, pages, outputs, &[])
            }
        }
    }

    fn decode_embed(&mut self) -> Result<[u32; 2]> {
        if let Some(span) = self.embed {
            return Ok(span);
        }
        let span = [allocate::alloc_emb(self.queue, 1)?, 1];
        self.embed = Some(span);
        Ok(span)
    }

    /// Allocates pages up to `need`, and some of those that the generation will want anyway.
    fn grow(&mut self, need: usize) -> Result {
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

    /// Replaces a borrowed last page by a copy of its part that belongs to this context.
    fn own_last_page(&mut self) -> Result {
        let used = self.tokens.len() % self.page_size();
        if used > 0 {
            let last = self.tokens.len() / self.page_size();
            let copy = allocate::alloc_kvpage(self.queue, 1)?;
            allocate::copy_kvpage(self.queue, *self.pages[last], 0, copy, 0, used as u32)?;
            self.in_flight = true;
            // Pages after it are empty, and as shared as it is.
            self.pins.extend(self.pages.drain(last..));
            self.pages.push(Rc::new(copy));
        } else {
            self.pins.extend(self.pages.drain(self.tokens.len() / self.page_size()..));
        }
        self.input_spans.0 = usize::MAX;
        self.borrowed = false;
        Ok(())
    }

    /// Forgets the tokens from `length` on. Slots can't be emptied: a cut page gets copied.
    pub(crate) fn set_length(&mut self, length: usize) -> Result {
        let cut = self.pages.split_off(length.div_ceil(self.page_size()));
        self.release(cut)?;
        self.tokens.truncate(length);
        self.cached = self.cached.min(length / self.page_size());
        self.borrowed = true;
        self.has_hidden = false;
        self.input_spans.0 = usize::MAX;
        Ok(())
    }

    /// Takes the last token back into the buffer, so that the next run gives its hidden state.
    fn rerun_last_token(&mut self) -> Result {
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
    fn release(&mut self, pages: Vec<Rc<u32>>) -> Result {
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

    async fn synchronize(&mut self) -> Result {
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

    // For the generator

    /// Turns what waits into tokens; after a message, the assistant's turn starts.
    pub(crate) fn start_turn(&mut self) -> Result {
        self.render(true)
    }

    /// Notes how many tokens a generation may add.
    pub(crate) fn expect(&mut self, tokens: usize) {
        self.limit = self.len() + tokens;
    }

    /// The last tokens, for the text that follows them.
    pub(crate) fn tail(&self) -> Vec<u32> {
        let mut tail = self.tokens[self.tokens.len().saturating_sub(8)..].to_vec();
        tail.extend(&self.pending);
        tail.retain(|&token| token != UNKNOWN_TOKEN);
        tail
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.pending.push(token);
    }

    /// All tokens that are known.
    pub(crate) fn known_tokens(&self) -> Vec<u32> {
        let tokens = self.tokens.iter().chain(&self.pending);
        tokens.copied().filter(|&token| token != UNKNOWN_TOKEN).collect()
    }

    /// Runs what is pending and asks for the distribution after it.
    pub(crate) async fn next_distribution(&mut self, k: u32) -> Result<Distribution> {
        let embed = self.output_embed().await?;
        let asked: HostFuture<Distribution> = text::get_next_dist(self.queue, embed, k);
        let distribution = asked.await?;
        self.completed()?;
        Ok(distribution)
    }

    /// Runs what is pending; the embed of the hidden state after it.
    pub(crate) async fn output_embed(&mut self) -> Result<u32> {
        if let [token] = self.pending[..] {
            self.forward(&[token], true)?;
            self.pending.clear();
        } else {
            self.submit().await?;
        }
        let (Some([embed, _]), true) = (self.embed, self.has_hidden) else {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                "nothing to continue from: fill something into the context first",
            ));
        };
        Ok(embed)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = self.retract();
        // Pages that others hold must not be freed by them while commands here still read them. An
        // error means that the handles are gone with a lost worker; there is nothing left to give.
        if self.in_flight
            && self.pages.iter().chain(&self.pins).any(|page| Rc::strong_count(page) > 1)
        {
            let _ = self.settle();
        }
        let _ = self.offer_prefix();
        let pages = self.pages.drain(..).chain(self.pins.drain(..)).collect();
        let _ = self.release(pages);
        for embed in [self.embed, self.spare].into_iter().flatten() {
            let _ = allocate::dealloc_emb(self.queue, &embed);
        }
        let _ = runtime::destroy_queue(self.queue);
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
