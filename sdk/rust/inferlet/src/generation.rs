//! Generating tokens one after the other.

use crate::choice::{Choice, Rule};
use crate::context::Context;
use crate::error::{invalid, Result};
use crate::grammar::Grammar;
use crate::sample::Sampled;
use crate::session;
use crate::stream::{after, last_of, StopStrings, TextDecoder};
use crate::text::Distribution;

/// Of stop strings that the server looks for.
const MOST_END_CHARACTERS: usize = 1024;
/// Tokens that the server may guess at a time.
const MOST_GUESSES: u32 = 16;

/// A generation under way; made by [`Context::generate`].
///
/// ```ignore
/// let text = context.generate(Sampler::greedy()).max_tokens(64).collect_text().await?;
///
/// let mut generation = context.generate(Sampler::top_p(0.6, 0.95)).stop_strings(["\n\n"]);
/// while let Some(piece) = generation.next_text().await? { ... }
///
/// context.generate(Sampler::greedy()).max_tokens(64).send_text().await?; // to the client
/// ```
///
/// A generated token joins the context; the stop token that ends a generation does not. The text of
/// a stop string is left out of the text, its tokens stay in the context.
///
/// However it is read, the same seed gives the same tokens. The server chooses, and goes on by itself
/// while the program reads ([`run_ahead`](Generator::run_ahead)), but step by step for one that asks
/// for log-probabilities ([`next_sampled`](Generator::next_sampled)), looks at distributions or accepts
/// tokens of its own.
pub struct Generator<'a> {
    context: &'a mut Context,
    device: Choice,
    max_tokens: Option<usize>,
    run_ahead: bool,
    /// Tokens that the server may guess at a time.
    guesses: u32,
    stop_tokens: Vec<u32>,
    stop_strings: StopStrings,
    decoder: Option<TextDecoder>,
    count: usize,
    started: bool,
    done: bool,
    /// The program looks at distributions, or chooses tokens itself.
    by_hand: bool,
    /// Log-probabilities that are collected.
    scores: Option<Vec<f32>>,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(context: &'a mut Context, rule: Rule) -> Generator<'a> {
        let stop_tokens = context.model().stop_tokens().to_vec();
        Generator {
            context,
            device: Choice::new(rule),
            max_tokens: None,
            run_ahead: true,
            guesses: 0,
            stop_tokens,
            stop_strings: StopStrings::new([""; 0]),
            decoder: None,
            count: 0,
            started: false,
            done: false,
            by_hand: false,
            scores: None,
        }
    }

    /// Sets the most tokens to generate; up to the model's longest context unless set.
    pub fn max_tokens(mut self, count: usize) -> Generator<'a> {
        self.max_tokens = Some(count);
        self
    }

    /// Sets whether the server may go on by itself, token after token, so that the model does not
    /// wait for the inferlet (default: it may). The output is the same; what comes after the tokens
    /// that were read is undone. Within a grammar each token is needed first.
    pub fn run_ahead(mut self, wanted: bool) -> Generator<'a> {
        self.run_ahead = wanted;
        self
    }

    /// Sets how many tokens the server may guess at a time, 1 to 16: what came after the last ones
    /// where they came before (prompt lookup). The output is the same, and comes sooner where a text
    /// repeats; only where the server may go on by itself.
    pub fn speculate(mut self, most: u32) -> Generator<'a> {
        self.guesses = most;
        self
    }

    /// Sets the tokens that end the generation; the model's own unless set.
    pub fn stop_tokens(mut self, tokens: impl IntoIterator<Item = u32>) -> Generator<'a> {
        self.stop_tokens = tokens.into_iter().collect();
        self
    }

    /// Sets strings that end the generation as well as the stop tokens, which go on to be the
    /// model's own unless [`stop_tokens`](Generator::stop_tokens) says otherwise.
    pub fn stop_strings(
        mut self,
        strings: impl IntoIterator<Item = impl Into<String>>,
    ) -> Generator<'a> {
        self.stop_strings = StopStrings::new(strings);
        self
    }

    /// Makes the choices repeatable; the sampler's seed holds if this is `None`.
    pub fn seed(mut self, seed: impl Into<Option<u64>>) -> Generator<'a> {
        self.device.seed = seed.into().or(self.device.seed);
        self
    }

    /// Keeps the text to a grammar; the server then chooses. The generation ends where the grammar
    /// does; with too few tokens the text is cut short.
    pub fn grammar(mut self, grammar: &Grammar) -> Generator<'a> {
        self.device.grammar = Some(grammar.clone());
        self
    }

    /// Sets whether tokens that the grammar forces are taken without running the model (default:
    /// they are).
    pub fn forced(mut self, forced: bool) -> Generator<'a> {
        self.device.forced = forced;
        self
    }

    /// Tokens so far.
    pub fn tokens_generated(&self) -> usize {
        self.count
    }

    /// True if the text so far satisfies the grammar; always true without one.
    pub fn is_complete(&self) -> Result<bool> {
        self.device.is_complete()
    }

    /// True if it has as many tokens as it may: `max_tokens`, or what the model's longest context
    /// has room for.
    pub fn is_full(&self) -> bool {
        self.started && self.max_tokens == Some(self.count)
    }

    /// True if nothing more comes.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The next token; `None` at the end.
    pub async fn next_token(&mut self) -> Result<Option<u32>> {
        self.start_reading()?;
        let token = self.advance(!self.by_hand).await?;
        if let Some(token) = token {
            self.decode(token)?;
        }
        Ok(token)
    }

    /// The next token, and what the server reports of it; `None` at the end. It goes step by step: the
    /// server chooses no token before this one is asked for. The log-probability of a token that a
    /// grammar has forced is not a number.
    pub async fn next_sampled(&mut self) -> Result<Option<Sampled>> {
        self.start_reading()?;
        if self.done {
            return Ok(None);
        }
        let sampled = self.device.choose(self.context).await?;
        let token = sampled.as_ref().map(|sampled| sampled.token);
        let Some(token) = self.take(token) else { return Ok(None) };
        self.decode(token)?;
        Ok(sampled)
    }

    /// The next piece of text, of whole characters and never empty; `None` at the end. Text of
    /// tokens that were read or accepted as such does not come again.
    pub async fn next_text(&mut self) -> Result<Option<String>> {
        self.start()?;
        self.start_decoder()?;
        while let Some(token) = self.advance(true).await? {
            let text = self.decode(token)?;
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
        let rest = self.rest()?;
        Ok((!rest.is_empty()).then_some(rest))
    }

    /// All tokens.
    pub async fn collect_tokens(mut self) -> Result<Vec<u32>> {
        self.read_tokens().await
    }

    /// As [`collect_tokens`](Generator::collect_tokens), and the generation stays.
    pub async fn read_tokens(&mut self) -> Result<Vec<u32>> {
        self.start()?;
        let mut tokens = Vec::new();
        loop {
            let more = self.advance_far().await?;
            if more.is_empty() {
                return Ok(tokens);
            }
            tokens.extend(more);
        }
    }

    /// All tokens and the log-probability of each: of the model's own distribution, at temperature 1,
    /// before the sampler and masks; not a number for a token that a grammar has forced.
    pub async fn collect_scored(mut self) -> Result<(Vec<u32>, Vec<f32>)> {
        self.scores = Some(Vec::new());
        let tokens = self.read_tokens().await?;
        Ok((tokens, self.scores.unwrap_or_default()))
    }

    /// All text that has not been read yet, be it as text or as tokens.
    pub async fn collect_text(mut self) -> Result<String> {
        self.read_text().await
    }

    /// As [`collect_text`](Generator::collect_text), and the generation stays.
    pub async fn read_text(&mut self) -> Result<String> {
        let begun = self.started;
        if let Some(text) = self.whole_text(false).await? {
            return Ok(text);
        }
        if self.stop_strings.is_empty() && !begun {
            // The text is not read before its end: decode it once.
            let tokenizer = self.context.model().tokenizer();
            let (mut tokens, before) = last_of(&tokenizer, &self.context.tail())?;
            tokens.extend(self.read_tokens().await?);
            let text = tokenizer.decode(&tokens)?;
            return Ok(after(&text, &before).to_owned());
        }
        let mut text = String::new();
        while let Some(piece) = self.next_text().await? {
            text.push_str(&piece);
        }
        Ok(text)
    }

    /// Sends the text that has not been read yet to the client as it comes, and returns it.
    ///
    /// The server does so by itself where it goes on by itself, and waits while the client does not
    /// read; the inferlet is woken at the end. If this is dropped before, the context is as it was.
    pub async fn send_text(mut self) -> Result<String> {
        if let Some(text) = self.whole_text(true).await? {
            return Ok(text);
        }
        let mut text = String::new();
        while let Some(piece) = self.next_text().await? {
            session::stream(&piece).await?;
            text.push_str(&piece);
        }
        Ok(text)
    }

    /// All text, read by the server; `None` if it cannot, as where each token is needed first.
    async fn whole_text(&mut self, to_client: bool) -> Result<Option<String>> {
        let ends = self.stop_strings.strings().iter().map(|end| end.chars().count());
        if self.started || ends.sum::<usize>() > MOST_END_CHARACTERS {
            return Ok(None);
        }
        self.start()?;
        let before = self.context.tail();
        if self.done {
            return Ok(Some(String::new()));
        }
        if !self.runs().await? {
            return Ok(None);
        }
        let ends = self.stop_strings.strings();
        let (tokens, text) = self.context.run_text(&before, ends, to_client).await?;
        self.join(tokens);
        self.done = true;
        self.context.retract();
        Ok(Some(text))
    }

    /// Runs the model and returns the `k` most likely next tokens, without choosing. Follow it with
    /// [`accept`](Generator::accept) to continue with a token of your own choice.
    pub async fn distribution(&mut self, k: u32) -> Result<Distribution> {
        self.start()?;
        self.by_hand = true;
        self.context.next_distribution(k).await
    }

    /// Continues with a token chosen by the program, as if it had been sampled. False if it ends
    /// the generation: a stop token, or after the end.
    pub fn accept(&mut self, token: u32) -> Result<bool> {
        self.start_reading()?;
        self.by_hand = true;
        if !self.done && !self.stop_tokens.contains(&token) {
            self.device.accept(token)?;
        }
        let taken = self.take(Some(token)).is_some();
        if taken {
            self.decode(token)?;
        }
        Ok(taken)
    }

    fn start(&mut self) -> Result {
        if self.started {
            return Ok(());
        }
        if self.context.chat.unanswered {
            self.context.cue()?;
        }
        if self.guesses > MOST_GUESSES {
            return invalid(format!("1 to {MOST_GUESSES} tokens can be guessed at a time"));
        }
        let (length, longest) =
            (self.context.next_position(), self.context.model().max_position() as usize);
        let Some(room) = longest.checked_sub(length) else {
            return invalid(format!(
                "the context has {length} tokens, and the model's longest is {longest}: fill in \
                 less, or `truncate` it"
            ));
        };
        self.started = true;
        let most = self.max_tokens.map_or(room, |most| most.min(room));
        self.max_tokens = Some(most);
        self.done = most == 0;
        self.context.limit = self.context.len() + most;
        Ok(())
    }

    /// Starts, and reads text where stop strings are looked for.
    fn start_reading(&mut self) -> Result {
        self.start()?;
        match self.stop_strings.is_empty() {
            true => Ok(()),
            false => self.start_decoder(),
        }
    }

    fn start_decoder(&mut self) -> Result {
        if self.decoder.is_none() && !self.done {
            let tokenizer = self.context.model().tokenizer();
            self.decoder = Some(TextDecoder::new(tokenizer, &self.context.tail())?);
        }
        Ok(())
    }

    /// The next token, a run's where one may be: the server goes on by itself then.
    async fn advance(&mut self, may_run: bool) -> Result<Option<u32>> {
        if self.done {
            return Ok(None);
        }
        let token = match may_run && self.runs().await? {
            true => self.context.run_token().await?,
            false => None,
        };
        let (token, logprobs) = match token {
            Some(_) => (token, self.run_logprobs(1)?),
            None => match self.device.choose(self.context).await? {
                Some(sampled) => (Some(sampled.token), vec![sampled.logprob]),
                None => (None, Vec::new()),
            },
        };
        let token = self.take(token);
        self.score(logprobs, token.iter().len());
        Ok(token)
    }

    /// As many of the next tokens as come at once; none at the end.
    async fn advance_far(&mut self) -> Result<Vec<u32>> {
        let alone = self.stop_strings.is_empty() && self.decoder.is_none() && !self.done;
        let tokens = match alone && self.runs().await? {
            true => self.context.run_rest().await?,
            false => Vec::new(),
        };
        if tokens.is_empty() {
            return Ok(self.next_token().await?.into_iter().collect());
        }
        let logprobs = self.run_logprobs(tokens.len())?;
        let tokens = self.join(tokens);
        self.score(logprobs, tokens.len());
        Ok(tokens)
    }

    /// Log-probabilities of the run's last tokens, where they are collected.
    fn run_logprobs(&self, count: usize) -> Result<Vec<f32>> {
        match self.scores {
            Some(_) => self.context.run_logprobs(count),
            None => Ok(Vec::new()),
        }
    }

    fn score(&mut self, logprobs: Vec<f32>, first: usize) {
        if let Some(scores) = &mut self.scores {
            scores.extend(logprobs.into_iter().take(first));
        }
    }

    /// Notes tokens of which all but the last are in the context already; those that belong to it.
    fn join(&mut self, mut tokens: Vec<u32>) -> Vec<u32> {
        self.count += tokens.len().saturating_sub(1);
        let last = tokens.last().copied();
        if last.is_some() && self.take(last).is_none() {
            tokens.pop();
        }
        tokens
    }

    /// True if the next token is a run's.
    async fn runs(&mut self) -> Result<bool> {
        let most = self.max_tokens.map_or(0, |most| most - self.count);
        if !self.run_ahead {
            return Ok(false);
        }
        self.device.runs(self.context, most, &self.stop_tokens, self.guesses).await
    }

    /// Appends a token to the context, unless it ends the generation, as none does; with that ends
    /// what the server goes on with. The token, if it was appended.
    fn take(&mut self, token: Option<u32>) -> Option<u32> {
        let token = token.filter(|token| !self.done && !self.stop_tokens.contains(token));
        if let Some(token) = token {
            self.context.pending.push(token);
            self.count += 1;
        }
        self.done = token.is_none() || Some(self.count) == self.max_tokens;
        if self.done {
            self.context.retract();
        }
        token
    }

    /// The text that a token completes, if the program reads text.
    fn decode(&mut self, token: u32) -> Result<String> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(String::new());
        };
        let (text, found) = self.stop_strings.feed(decoder.feed(token)?);
        if found {
            self.done = true;
            self.decoder = None;
            self.context.retract();
        }
        Ok(text)
    }

    /// Text that waited for more, at the end.
    fn rest(&mut self) -> Result<String> {
        let Some(mut decoder) = self.decoder.take() else {
            return Ok(String::new());
        };
        let (mut text, found) = self.stop_strings.feed(decoder.finish()?);
        if !found {
            text.push_str(&self.stop_strings.finish());
        }
        Ok(text)
    }
}
