//! The server's choice of tokens, as a generation uses it.

use std::collections::VecDeque;
use std::fmt::Write;

use crate::context::{Context, RunHold};
use crate::error::{Error, ErrorCode, Result};
use crate::grammar::{sample_constrained, Grammar, Matcher};
use crate::sample::{self, Sampled};
use crate::sampler::Sampler;

/// How the server chooses a token, among the whole vocabulary.
///
/// The steps go in the order of the contract's `create-sampler`, which says what each of them does,
/// unless `order` names another one.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSampler {
    /// Weights: of the own logits, and of those of [`beside`](crate::Generator::beside).
    pub mix: Vec<f32>,
    /// Share of the likeliest token's own probability that a token needs to be mixed.
    pub plausibility: f32,
    /// Added to tokens' logits; `None` rules a token out.
    pub logit_bias: Vec<(u32, Option<f32>)>,
    /// All others are ruled out.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Of tokens in the prompt and generated; 1 is none.
    pub repetition_penalty: f32,
    /// Of generated tokens, once.
    pub presence_penalty: f32,
    /// Of generated tokens, each time.
    pub frequency_penalty: f32,
    /// No sequence of so many tokens comes twice; 0 is none.
    pub no_repeat_ngram_size: u32,
    /// DRY: against going on with a repetition; 0 is none.
    pub dry_multiplier: f32,
    /// Of the penalty, for each token more that is repeated.
    pub dry_base: f32,
    /// Tokens that may be repeated.
    pub dry_allowed_length: u32,
    /// Tokens at which a repetition ends.
    pub dry_sequence_breakers: Vec<u32>,
    /// For the tokens that a hash of the key and the token before favours; 0 is none.
    pub watermark_bias: f32,
    /// Share of the tokens that it favours.
    pub watermark_share: f32,
    /// Below 2^48.
    pub watermark_key: u64,
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// 0 is all.
    pub top_k: u32,
    /// From 0 to 1, which is all.
    pub top_p: f32,
    /// Share of the likeliest token's probability that a token must have.
    pub min_p: f32,
    /// Locally typical: mass of the tokens that are about as likely as is to be expected; 1 is all.
    pub typical_p: f32,
    /// Probability that a token must have.
    pub epsilon_cutoff: f32,
    /// The same, lower where much is likely.
    pub eta_cutoff: f32,
    /// How often XTC leaves out the likely tokens but the last of them.
    pub xtc_probability: f32,
    /// Probability of what is likely to XTC.
    pub xtc_threshold: f32,
    /// Names of the steps, in another order; empty: as in the contract.
    pub order: Vec<String>,
    /// The number of most likely tokens that each step also reports.
    pub logprobs: u32,
    /// Same seed, same tokens; by default the server draws one.
    pub seed: Option<u64>,
}

impl Default for DeviceSampler {
    fn default() -> DeviceSampler {
        DeviceSampler {
            mix: vec![1.0],
            plausibility: 0.0,
            logit_bias: Vec::new(),
            allowed_tokens: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            no_repeat_ngram_size: 0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_sequence_breakers: Vec::new(),
            watermark_bias: 0.0,
            watermark_share: 0.5,
            watermark_key: 0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            order: Vec::new(),
            logprobs: 0,
            seed: None,
        }
    }
}

impl DeviceSampler {
    /// The parameters as the contract wants them.
    pub fn to_json(&self) -> String {
        close(self.open_json(), self.seed)
    }

    /// Without the seed and the closing brace.
    fn open_json(&self) -> String {
        let mut out = String::from("{\"logit_bias\":{");
        for (i, (token, bias)) in self.logit_bias.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            // Writing to a String can't fail.
            let _ = match bias {
                Some(bias) => write!(out, "{comma}\"{token}\":{bias:?}"),
                None => write!(out, "{comma}\"{token}\":null"),
            };
        }
        out.push('}');
        for (name, value) in [
            ("no_repeat_ngram_size", u64::from(self.no_repeat_ngram_size)),
            ("dry_allowed_length", u64::from(self.dry_allowed_length)),
            ("watermark_key", self.watermark_key),
            ("top_k", u64::from(self.top_k)),
            ("logprobs", u64::from(self.logprobs)),
        ] {
            let _ = write!(out, ",\"{name}\":{value}");
        }
        for (name, value) in [
            ("plausibility", self.plausibility),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("dry_multiplier", self.dry_multiplier),
            ("dry_base", self.dry_base),
            ("watermark_bias", self.watermark_bias),
            ("watermark_share", self.watermark_share),
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("typical_p", self.typical_p),
            ("epsilon_cutoff", self.epsilon_cutoff),
            ("eta_cutoff", self.eta_cutoff),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
        ] {
            let _ = write!(out, ",\"{name}\":{value:?}");
        }
        let (mix, breakers) = (&self.mix, &self.dry_sequence_breakers);
        let _ = write!(out, ",\"mix\":{mix:?},\"dry_sequence_breakers\":{breakers:?}");
        if let Some(tokens) = &self.allowed_tokens {
            let _ = write!(out, ",\"allowed_tokens\":{tokens:?}");
        }
        if !self.order.is_empty() {
            let _ = write!(out, ",\"order\":{:?}", self.order);
        }
        out
    }

    /// Whether its choices depend on the tokens before, as far as this can tell.
    fn counts(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Whether it has to be told of the tokens of the context.
    fn looks_back(&self) -> bool {
        self.counts()
            || self.no_repeat_ngram_size > 0
            || self.dry_multiplier != 0.0
            || self.watermark_bias != 0.0
    }
}

fn close(mut parameters: String, seed: Option<u64>) -> String {
    if let Some(seed) = seed {
        let _ = write!(parameters, ",\"seed\":{seed}");
    }
    parameters.push('}');
    parameters
}

/// The server's choices in one generation. What formats floats is needed only where one is made.
pub(crate) struct Device {
    parameters: String,
    counts: bool,
    looks_back: bool,
    /// Weights of logits: of this context, and of those beside it.
    pub weights: usize,
    pub seed: Option<u64>,
    pub grammar: Option<Grammar>,
    pub forced: bool,
    /// The run under way, or the last one.
    run: Option<RunHold>,
    made: Option<Made>,
}

impl Device {
    pub fn new(sampler: &DeviceSampler) -> Device {
        Device {
            parameters: sampler.open_json(),
            counts: sampler.counts(),
            looks_back: sampler.looks_back(),
            weights: sampler.mix.len(),
            seed: sampler.seed,
            grammar: None,
            forced: true,
            run: None,
            made: None,
        }
    }

    /// The choice of a plain sampler.
    pub fn plain(sampler: &Sampler) -> Device {
        Device {
            parameters: sampler.open_json(),
            counts: false,
            looks_back: false,
            weights: 1,
            seed: sampler.seed(),
            grammar: None,
            forced: false,
            run: None,
            made: None,
        }
    }

    /// Whether the next token is a run's; starts one where it can.
    pub async fn runs(
        &mut self,
        context: &mut Context,
        most: usize,
        stops: &[u32],
    ) -> Result<bool> {
        if let Some(run) = &self.run {
            if context.goes_on(run)? {
                return Ok(true);
            }
        }
        if most < 2 || self.grammar.is_some() || self.weights > 1 {
            // Each token's mask depends on the one before; and a run goes on with one text alone.
            return Ok(false);
        }
        let (sampler, embed) = self.queue_input(context).await?;
        self.run = context.start_run(sampler, embed, most, stops)?;
        Ok(self.run.is_some())
    }

    /// The next token with what the server tells of it, or `None` at the grammar's end.
    pub async fn choose(
        &mut self,
        context: &mut Context,
        beside: &mut [&mut Context],
    ) -> Result<Option<Sampled>> {
        self.prepare(context).await?;
        let Some(made) = &mut self.made else {
            return Ok(None);
        };
        if let Some(matcher) = &mut made.matcher {
            if self.forced && made.waiting.is_empty() {
                let tokens = matcher.forced()?;
                if !tokens.is_empty() {
                    matcher.advance(&tokens)?;
                    if self.looks_back {
                        sample::feed_sampler(made.queue, made.sampler, &tokens, true)?;
                    }
                    made.waiting.extend(tokens);
                }
            }
            if let Some(token) = made.waiting.pop_front() {
                return Ok(Some(Sampled::forced(token)));
            }
            if matcher.is_finished()? {
                return Ok(None);
            }
        }
        let (sampler, embed) = self.queue_input(context).await?;
        for other in beside.iter_mut() {
            other.retract()?;
            let hidden = other.output_embed().await?;
            sample::mix_logits(other.queue(), hidden, context.queue(), sampler)?;
        }
        let Some(made) = &self.made else {
            return Ok(None);
        };
        let sampled = match &made.matcher {
            None => sample::sample(made.queue, embed, sampler),
            Some(matcher) => sample_constrained(made.queue, embed, sampler, matcher.handle()),
        };
        let sampled = sampled.await?;
        context.completed()?;
        for other in beside {
            other.completed()?;
        }
        Ok(Some(sampled))
    }

    /// The sampler, and the embed after which it chooses: all that is pending is queued.
    async fn queue_input(&mut self, context: &mut Context) -> Result<(u32, u32)> {
        self.prepare(context).await?;
        context.retract()?;
        let undone = self.run.take().is_some_and(|run| run.undone());
        if undone && self.counts {
            // A choice that the program has not seen must not count for penalties.
            self.seed = self.seed.map(|seed| seed.wrapping_add(1)); // not the same draws again
            if let Some(made) = self.made.take() {
                self.make(context, None, made.given)?;
            }
        }
        let embed = context.output_embed().await?;
        Ok((self.made.as_ref().map_or(0, |made| made.sampler), embed))
    }

    /// Takes in a token of the program's own choice.
    pub fn accept(&mut self, token: u32) -> Result {
        let Some(made) = &mut self.made else {
            let message = "accept a token only after the first step";
            return Err(Error::new(ErrorCode::InvalidArgument, message));
        };
        if let Some(matcher) = &mut made.matcher {
            matcher.advance(&[token])?;
        }
        match self.looks_back {
            true => sample::feed_sampler(made.queue, made.sampler, &[token], true),
            false => Ok(()),
        }
    }

    /// Makes the server's sampler, and compiles the grammar, before the first step.
    pub async fn prepare(&mut self, context: &mut Context) -> Result {
        if self.made.is_some() {
            return Ok(());
        }
        let matcher = match &self.grammar {
            Some(grammar) => Some(grammar.matcher(context.model()).await?),
            None => None,
        };
        self.make(context, matcher, usize::MAX)
    }

    /// Makes the sampler, and tells it of the context's tokens; of these, the first were given.
    fn make(&mut self, context: &Context, matcher: Option<Matcher>, given: usize) -> Result {
        let queue = context.queue();
        let parameters = close(self.parameters.clone(), self.seed);
        let sampler = sample::create_sampler(queue, &parameters)?;
        let known = if self.looks_back { context.known_tokens() } else { Vec::new() };
        let (given, generated) = known.split_at(given.min(known.len()));
        self.made =
            Some(Made { queue, sampler, matcher, waiting: VecDeque::new(), given: given.len() });
        for (tokens, generated) in [(given, false), (generated, true)] {
            if !tokens.is_empty() {
                sample::feed_sampler(queue, sampler, tokens, generated)?;
            }
        }
        Ok(())
    }

    /// Whether the text may end here: always, without a grammar.
    pub fn is_complete(&self) -> Result<bool> {
        match (&self.grammar, &self.made) {
            (None, _) => Ok(true),
            (_, Some(Made { matcher: Some(matcher), .. })) => matcher.is_accepting(),
            _ => Ok(false),
        }
    }
}

/// What the server holds for it.
struct Made {
    queue: u32,
    sampler: u32,
    matcher: Option<Matcher>,
    /// Forced tokens that the matcher has consumed.
    waiting: VecDeque<u32>,
    /// Tokens before the first choice, if the sampler looks back.
    given: usize,
}

impl Drop for Made {
    fn drop(&mut self) {
        // It fails at worst because a lost worker has taken the sampler with it.
        let _ = sample::destroy_sampler(self.queue, self.sampler);
    }
}
