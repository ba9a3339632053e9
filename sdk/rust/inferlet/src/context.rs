//! A context: tokens whose keys and values stay in the server's KV pages, to be continued and
//! forked.

use std::cell::RefCell;
use std::rc::Rc;

use crate::chat::Conversation;
use crate::choice::Rule;
use crate::error::{invalid, Result};
use crate::generation::Generator;
use crate::images::Extent;
use crate::model::Model;
use crate::stream::MOST_BEFORE;
use crate::text::Distribution;
use crate::{allocate, runtime};

mod exports;
mod messages;
mod pages;
mod run;
mod several;
mod submit;

pub(crate) use pages::{held, spans};
use run::Run;
pub(crate) use run::RunHold;

/// Stands in a context's tokens for each place of an image.
pub const UNKNOWN_TOKEN: u32 = u32::MAX;

/// A text that grows: prompts are filled in, tokens are generated, forks share what is there.
///
/// What is filled in waits in a buffer until [`flush`](Context::flush) or the next generation,
/// which runs it through the model. Full pages are never written again, so forks share them; the
/// last, partial page is copied when one of them first writes to it. Commands of different contexts
/// are batched together: run many with `join_all`.
///
/// A context gives its pages back when it is dropped.
pub struct Context {
    model: Model,
    /// LoRA adapter that everything goes through.
    adapter: Option<Rc<str>>,
    pub(crate) queue: u32,
    /// Span of the embed that decoding uses, for the token and for the hidden state after it.
    embed: Option<[u32; 2]>,
    /// Span of a second embed, which runs use.
    spare: Option<[u32; 2]>,
    /// Addresses of the pages. A page that another context holds as well has a count above one.
    pub(crate) pages: Vec<Rc<u32>>,
    /// Tokens in the pages.
    pub(crate) tokens: Vec<u32>,
    /// Tokens that follow, not in the pages yet.
    pub(crate) pending: Vec<u32>,
    /// True to share what is computed with the user's other inferlets.
    prefix_cache: bool,
    /// How many of the first pages the prefix cache has been offered.
    offered: usize,
    /// Tokens that it began with from the prefix cache.
    found: usize,
    /// How far the next token's position lies behind its place among the tokens.
    pub(crate) shift: isize,
    /// Images that take fewer positions than places.
    pub(crate) images: Vec<Extent>,
    /// How many of the first pages must be copied before they are written: others may read them.
    read_only: usize,
    /// The embed holds the last token's hidden state.
    has_hidden: bool,
    /// How many of the first tokens have run for certain. If commands fail, the others are pending
    /// again.
    confirmed: usize,
    /// A run that goes on beyond all this; it is ended before anything else is queued.
    run: Option<Rc<RefCell<Run>>>,
    /// Spans of the filled pages, and how many pages these are.
    input_spans: (usize, Vec<u32>),
    /// Tokens that the generation under way may reach.
    pub(crate) limit: usize,
    pub(crate) chat: Conversation,
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
            offered: 0,
            found: 0,
            shift: 0,
            images: Vec::new(),
            read_only: 0,
            has_hidden: false,
            confirmed: 0,
            run: None,
            input_spans: (0, Vec::new()),
            limit: 0,
            chat: Conversation::default(),
        })
    }

    /// An empty context that goes through a LoRA adapter, one of
    /// [`available_adapters`](crate::adapter::available_adapters).
    pub fn with_adapter(model: &Model, adapter: &str) -> Result<Context> {
        let mut context = Context::new(model)?;
        context.adapter = Some(adapter.into());
        Ok(context)
    }

    /// Sets whether the context uses the prefix cache (default: it does): an empty one starts with
    /// the longest prefix that this user's inferlets have computed, and shares its own pages. Full
    /// pages are then immutable for functions of [`allocate`] and [`forward`](crate::forward).
    pub fn prefix_cache(mut self, wanted: bool) -> Context {
        self.prefix_cache = wanted;
        self
    }

    /// Sets the arguments of the chat template next to the messages, a JSON object: `tools`,
    /// `documents`, `enable_thinking`, ...; `chat_template` names one of several templates.
    pub fn chat(mut self, arguments: &str) -> Context {
        self.chat = Conversation::with(arguments.into());
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

    /// Tokens at the beginning that the prefix cache had, once they have been looked for.
    pub fn found_tokens(&self) -> usize {
        self.found
    }

    /// Tokens that wait for the next flush or generation. Chat messages become tokens only then.
    pub fn buffer(&self) -> &[u32] {
        &self.pending
    }

    /// Tokens in all.
    pub fn len(&self) -> usize {
        self.tokens.len() + self.pending.len()
    }

    /// True if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs what is buffered through the model, and waits until it is in the pages.
    ///
    /// Errors: `out-of-resources` if there are not enough pages or embeds.
    pub async fn flush(&mut self) -> Result {
        self.retract();
        self.render()?;
        self.submit().await?;
        self.synchronize().await
    }

    /// Continues the context with a [`Sampler`](crate::Sampler) or a device program's
    /// [`ProgramSampler`](crate::device::ProgramSampler); see [`Generator`] for the ways to read it.
    /// Nothing runs before.
    pub fn generate(&mut self, sampler: impl Into<Rule>) -> Generator<'_> {
        Generator::new(self, sampler.into())
    }

    /// The `k` most likely next tokens after all that is filled in.
    ///
    /// Errors: `invalid-argument` if the context is empty.
    pub async fn distribution(&mut self, k: u32) -> Result<Distribution> {
        self.render()?;
        self.next_distribution(k).await
    }

    /// A second context with the same content, that shares the pages.
    ///
    /// If it generates at once, it runs the last token again: that gives it a hidden state of its
    /// own.
    pub fn fork(&mut self) -> Result<Context> {
        self.confirm()?; // the fork would not know of a failure
        let mut other = Context::new(&self.model)?;
        other.adapter.clone_from(&self.adapter);
        other.prefix_cache = self.prefix_cache;
        other.offered = self.offered;
        other.pages.clone_from(&self.pages);
        other.tokens.clone_from(&self.tokens);
        other.confirmed = self.confirmed;
        other.pending.clone_from(&self.pending);
        other.chat = self.chat.clone();
        other.read_only = other.pages.len();
        self.read_only = self.pages.len();
        other.shift = self.shift;
        other.images.clone_from(&self.images);
        Ok(other)
    }

    /// Keeps the first `length` tokens only. Chat messages that wait are dropped. A cut in a page
    /// that only this context holds moves nothing; a shared page is copied when it is next written.
    ///
    /// Errors: `invalid-argument` if there are fewer.
    pub fn truncate(&mut self, length: usize) -> Result {
        if length > self.len() {
            let tokens = self.len();
            return invalid(format!("length {length} is outside this context of {tokens} tokens"));
        }
        self.chat = Conversation::with(self.chat.arguments.clone());
        self.cut(length)
    }

    /// Keeps the first `length` tokens, at most as many as there are; the conversation goes on.
    fn cut(&mut self, length: usize) -> Result {
        if length >= self.tokens.len() {
            self.pending.truncate(length - self.tokens.len());
            return Ok(());
        }
        self.retract();
        self.pending.clear();
        self.set_length(length)
    }

    fn page_size(&self) -> usize {
        self.model.page_size() as usize
    }

    /// The last tokens, for the text that follows them.
    pub(crate) fn tail(&self) -> Vec<u32> {
        let mut tail = self.tokens[self.tokens.len().saturating_sub(MOST_BEFORE)..].to_vec();
        tail.extend(&self.pending);
        tail.retain(|&token| token != UNKNOWN_TOKEN);
        tail
    }

    /// All tokens that are known.
    pub(crate) fn known_tokens(&self) -> Vec<u32> {
        let tokens = self.tokens.iter().chain(&self.pending);
        tokens.copied().filter(|&token| token != UNKNOWN_TOKEN).collect()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.retract();
        // An error means that the handles are gone with a lost worker: there is nothing to give.
        let _ = self.offer_prefix();
        let pages = std::mem::take(&mut self.pages);
        let _ = self.release(pages);
        for embed in [self.embed, self.spare].into_iter().flatten() {
            let _ = allocate::dealloc_emb(self.queue, &embed);
        }
        let _ = runtime::destroy_queue(self.queue);
    }
}
