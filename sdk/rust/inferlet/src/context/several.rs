//! Several tokens in one forward, with the distribution after each of them.

use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::Pin;

use super::Context;
use crate::error::{invalid, Result};
use crate::future::HostFuture;
use crate::task::gather;
use crate::text::Distribution;
use crate::{allocate, sample, text};

const SCORED_AT_ONCE: usize = 32; // texts, each with pages of its own
const CHOSEN_AT_ONCE: usize = 32; // tokens of a text, whose log-probabilities come in one batch

/// Tokens that are to run at once; made by [`Context::forward`], and awaited.
pub struct Forward<'a> {
    context: &'a mut Context,
    tokens: Vec<u32>,
    k: u32,
    parents: Option<Vec<Option<usize>>>,
    layout: Layout,
}

/// Where the tokens of one forward stand, and what they attend to; text, unless set.
#[derive(Default)]
struct Layout {
    positions: Option<Vec<usize>>,
    mask: Option<Vec<Vec<Range<usize>>>>,
}

impl Forward<'_> {
    /// Makes a tree of the tokens: for each the number of the one that it follows, an earlier one;
    /// `None`: it follows the context. [`Context::keep`] makes text of one of its paths.
    pub fn parents(mut self, parents: &[Option<usize>]) -> Self {
        self.parents = Some(parents.to_vec());
        self
    }

    /// Sets for each token the stretches of the context that it attends to, its own place included.
    pub fn mask(mut self, mask: &[Vec<Range<usize>>]) -> Self {
        self.layout.mask = Some(mask.to_vec());
        self
    }

    /// Sets the positions of the tokens.
    pub fn positions(mut self, positions: &[usize]) -> Self {
        self.layout.positions = Some(positions.to_vec());
        self
    }

    async fn run(mut self) -> Result<Vec<Distribution>> {
        let context = self.context;
        context.render()?;
        context.retract()?;
        context.chat.went_on();
        if let Some(parents) = &self.parents {
            self.layout = tree(parents, context.len(), context.next_position())?;
        }
        let Layout { positions, mask } = &self.layout;
        let lengths = [
            self.parents.as_ref().map(Vec::len),
            positions.as_ref().map(Vec::len),
            mask.as_ref().map(Vec::len),
        ];
        let count = self.tokens.len();
        if lengths.into_iter().flatten().any(|length| length != count) {
            return invalid(format!("parents, mask and positions are each for all {count} tokens"));
        }
        let k = self.k;
        let ask = |queue, embed| text::get_next_dist(queue, embed, k);
        context.run_several(&self.tokens, &self.layout, ask).await
    }
}

impl<'a> IntoFuture for Forward<'a> {
    type Output = Result<Vec<Distribution>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// The layout of a tree of tokens: each attends to all before the tree, and its ancestors.
fn tree(parents: &[Option<usize>], first: usize, position: usize) -> Result<Layout> {
    let mut paths: Vec<Vec<usize>> = Vec::new();
    for (i, parent) in parents.iter().enumerate() {
        let above = match parent {
            None => &[][..],
            Some(parent) if *parent < i => &paths[*parent],
            Some(parent) => return invalid(format!("token {i} of a tree can't follow {parent}")),
        };
        paths.push([above, &[i]].concat());
    }
    let own = |path: &Vec<usize>| path.iter().map(|i| first + i..first + i + 1).collect();
    let mask = paths.iter().map(|path| [vec![0..first], own(path)].concat()).collect();
    let positions = paths.iter().map(|path| position + path.len() - 1).collect();
    Ok(Layout { positions: Some(positions), mask: Some(mask) })
}

impl Context {
    /// Runs tokens at once, behind what is buffered; the `k` most likely tokens after each of them.
    ///
    /// They join the context; [`truncate`](Context::truncate) takes back those that turn out wrong,
    /// and moves nothing. So a draft is verified in one forward. What is no plain text, by
    /// [`parents`](Forward::parents), [`mask`](Forward::mask) or
    /// [`positions`](Forward::positions), has to fit into one forward (`max_batch_tokens`).
    ///
    /// Errors: `invalid-argument` (what is set disagrees in length, a tree that is none, stretches
    /// that do not rise), `out-of-resources`, `limit-exceeded`.
    pub fn forward(&mut self, tokens: &[u32], k: u32) -> Forward<'_> {
        let (tokens, layout) = (tokens.to_vec(), Layout::default());
        Forward { context: self, tokens, k, parents: None, layout }
    }

    /// Runs a draft at once, and keeps as much of it as greedy decoding would have written: returns
    /// that, and the token after it, which waits in the buffer. So one forward gives one token or
    /// more, and the same text as without drafts, but for tokens that are all but equally likely.
    ///
    /// Dropped before its end, it leaves the whole draft in the context.
    ///
    /// Errors: `invalid-argument` if the context is empty; as [`forward`](Context::forward).
    pub async fn verify(&mut self, draft: &[u32]) -> Result<Vec<u32>> {
        self.render()?;
        self.retract()?;
        let room = (self.model.max_position() as usize).saturating_sub(self.next_position());
        let draft = &draft[..draft.len().min(room)];
        if self.pending.is_empty() {
            self.rerun_last_token()?;
        }
        let Some(last) = self.pending.pop() else {
            return invalid("nothing to continue from: fill something in first");
        };
        let found = match self.forward(&[&[last], draft].concat(), 1).await {
            Ok(found) => found,
            Err(error) => {
                self.pending.push(last);
                return Err(error);
            }
        };
        let right = draft.iter().zip(&found).take_while(|(token, d)| **token == d.max_index());
        let good = right.count();
        self.set_length(self.tokens.len() - draft.len() + good)?;
        let next = found[good].max_index();
        self.pending.push(next);
        Ok([&draft[..good], &[next]].concat())
    }

    /// Runs what is pending and tokens; what is asked of the hidden state after each of the latter.
    async fn run_several<T: 'static>(
        &mut self,
        new: &[u32],
        layout: &Layout,
        ask: impl Fn(u32, u32) -> HostFuture<T>,
    ) -> Result<Vec<T>> {
        let is_text = layout.positions.is_none() && layout.mask.is_none();
        let most = match is_text {
            true => self.model.max_batch_tokens() as usize,
            false => new.len().max(1),
        };
        let first = self.tokens.is_empty() && self.prefix_cache; // finds what others have
        if !self.pending.is_empty() && (first || self.pending.len() + new.len() > most && is_text) {
            self.submit(0).await?;
        }
        let mut found = Vec::with_capacity(new.len());
        for chunk in new.chunks(most) {
            found.extend(self.run_at_once(chunk, layout, &ask).await?);
        }
        Ok(found)
    }

    /// As `run_several`, of as many tokens as one forward takes.
    async fn run_at_once<T: 'static>(
        &mut self,
        new: &[u32],
        layout: &Layout,
        ask: &impl Fn(u32, u32) -> HostFuture<T>,
    ) -> Result<Vec<T>> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let mask = self.mask_runs(new.len(), layout.mask.as_deref())?;
        let length = self.len();
        let pending = std::mem::take(&mut self.pending);
        let tokens = [&pending[..], new].concat();
        let count = tokens.len() as u32;
        let position = self.pending_position();
        let mut positions = vec![position, count];
        if let Some(places) = &layout.positions {
            positions =
                if pending.is_empty() { vec![] } else { vec![position, pending.len() as u32] };
            positions.extend(places.iter().flat_map(|&place| [place as u32, 1]));
        }
        let inputs = allocate::alloc_emb(self.queue, count)?;
        let first = inputs + pending.len() as u32;
        let others = [first, new.len() as u32 - 1];
        let queued =
            text::embed_txt(self.queue, &tokens, &positions, &[inputs, count]).and_then(|()| {
                let others = if others[1] > 0 { &others[..] } else { &[] };
                self.run_masked(&tokens, true, Some([inputs, count]), &mask, others, None)
            });
        if let Err(error) = queued {
            self.pending = pending;
            allocate::dealloc_emb(self.queue, &[inputs, count])?;
            return Err(error);
        }
        if layout.positions.is_some() || layout.mask.is_some() {
            self.prefix_cache = false; // it is no plain text any more
        }
        let last = self.decode_embed()?[0];
        let embeds = (first..first + others[1]).chain([last]);
        let asked: Vec<_> = embeds.map(|embed| ask(self.queue, embed)).collect();
        allocate::dealloc_emb(self.queue, &[inputs, count])?;
        let found = self.outcome(gather(asked)).await;
        if found.is_err() {
            self.cut(length)?;
        }
        found
    }

    /// A mask as the server wants it: for each token, those that are pending first, the lengths of
    /// hidden and visible stretches.
    fn mask_runs(&self, new: usize, mask: Option<&[Vec<Range<usize>>]>) -> Result<Vec<u32>> {
        let Some(mask) = mask else {
            return Ok(Vec::new());
        };
        let (start, width) = (self.tokens.len(), self.len() + new);
        let before = (start + 1..=self.len()).map(|end| vec![0..end]);
        let mut runs = Vec::new();
        for row in before.chain(mask.iter().cloned()) {
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
        Ok(runs)
    }

    /// Log-probabilities of texts that might follow, a number for each token of each text. They run
    /// on forks, 32 at once; the context stays as it is.
    ///
    /// Errors: `invalid-argument` if the context is empty, or a continuation is.
    pub async fn score(&mut self, continuations: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        self.render()?;
        if continuations.iter().any(Vec::is_empty) {
            return invalid("an empty continuation has no log-probability");
        }
        if self.pending.len() > 1 {
            self.submit(0).await?;
        }
        let mut found = Vec::with_capacity(continuations.len());
        for some in continuations.chunks(SCORED_AT_ONCE) {
            let forks = some.iter().map(|_| self.fork()).collect::<Result<Vec<_>>>()?;
            let scored = forks.into_iter().zip(some).map(|(fork, tokens)| fork.logs(tokens));
            found.extend(gather(scored).await?);
        }
        Ok(found)
    }

    /// Log-probabilities of a continuation's tokens; the context goes on with it.
    async fn logs(mut self, continuation: &[u32]) -> Result<Vec<f32>> {
        if self.pending.is_empty() {
            self.rerun_last_token()?;
        }
        let Some(last) = self.pending.pop() else {
            return invalid("nothing to continue from: fill something in first");
        };
        let tokens = [&[last], &continuation[..continuation.len() - 1]].concat();
        // Among one token there is no choice: what comes with it is its log-probability. A sampler
        // chooses one token of a batch, so several take turns.
        let samplers = (0..continuation.len().min(CHOSEN_AT_ONCE))
            .map(|_| sample::create_sampler(self.queue, "{\"temperature\":0}"))
            .collect::<Result<Vec<_>>>()?;
        let words = self.model.vocab_size().div_ceil(32) as usize;
        let number = Cell::new(0);
        let ask = |queue, embed| {
            let at = number.replace(number.get() + 1);
            let token = continuation[at];
            let mut mask = vec![0; words];
            mask[token as usize / 32] = 1 << (token % 32);
            sample::sample_masked(queue, embed, samplers[at % samplers.len()], &mask)
        };
        let found = self.run_several(&tokens, &Layout::default(), ask).await;
        for &sampler in &samplers {
            sample::destroy_sampler(self.queue, sampler)?;
        }
        Ok(found?.into_iter().map(|sampled| sampled.logprob).collect())
    }
}
