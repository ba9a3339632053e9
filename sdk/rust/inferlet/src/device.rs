//! The server's choice of tokens, as a generation uses it.

use std::collections::VecDeque;
use std::fmt::Write;
use std::mem;

use crate::context::Context;
use crate::error::{Error, ErrorCode, Result};
use crate::grammar::{sample_constrained, Grammar, Matcher};
use crate::runtime;
use crate::sample::{self, Sampled};
use crate::sampler::Sampler;
use crate::HostFuture;

/// How the server chooses a token, among the whole vocabulary.
///
/// The order: bias, penalties, grammar, temperature, top-k, top-p, min-p. The contract's
/// `create-sampler` says what each of them does.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSampler {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// 0 is all.
    pub top_k: u32,
    /// From 0 to 1, which is all.
    pub top_p: f32,
    /// Share of the likeliest token's probability that a token must have.
    pub min_p: f32,
    /// Of tokens in the prompt and generated; 1 is none.
    pub repetition_penalty: f32,
    /// Of generated tokens, once.
    pub presence_penalty: f32,
    /// Of generated tokens, each time.
    pub frequency_penalty: f32,
    /// Added to tokens' logits; `None` rules a token out.
    pub logit_bias: Vec<(u32, Option<f32>)>,
    /// The number of most likely tokens that each step also reports.
    pub logprobs: u32,
    /// Same seed, same tokens; by default the server draws one.
    pub seed: Option<u64>,
}

impl Default for DeviceSampler {
    fn default() -> DeviceSampler {
        DeviceSampler {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
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
        let _ = write!(out, "}},\"top_k\":{},\"logprobs\":{}", self.top_k, self.logprobs);
        for (name, value) in [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            let _ = write!(out, ",\"{name}\":{value:?}");
        }
        out
    }

    fn counts(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
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
    pub seed: Option<u64>,
    pub grammar: Option<Grammar>,
    pub forced: bool,
    /// Whether the program may ask for more of a choice than its token.
    pub tells: bool,
    pub last: Option<Sampled>,
    run: Option<Run>,
    /// The step after the newest token was queued before that was known.
    ahead: bool,
}

impl Device {
    pub fn new(sampler: &DeviceSampler) -> Device {
        Device {
            parameters: sampler.open_json(),
            counts: sampler.counts(),
            seed: sampler.seed,
            grammar: None,
            forced: true,
            tells: true,
            last: None,
            run: None,
            ahead: false,
        }
    }

    /// The choice of a plain sampler.
    pub fn plain(sampler: &Sampler) -> Device {
        Device {
            parameters: sampler.open_json(),
            counts: false,
            seed: sampler.seed(),
            grammar: None,
            forced: false,
            tells: false,
            last: None,
            run: None,
            ahead: false,
        }
    }

    /// The next token, or `None` at the grammar's end. With `ahead` the server is given the step
    /// after it, too; not within a grammar.
    pub async fn choose(&mut self, context: &mut Context, ahead: bool) -> Result<Option<u32>> {
        self.last = None;
        self.prepare(context).await?;
        let Some(run) = &mut self.run else { return Ok(None) };
        if let Some(matcher) = &mut run.matcher {
            if self.forced && run.waiting.is_empty() {
                let tokens = matcher.forced()?;
                if !tokens.is_empty() {
                    matcher.advance(&tokens)?;
                    if self.counts {
                        sample::feed_sampler(run.queue, run.sampler, &tokens, true)?;
                    }
                    run.waiting.extend(tokens);
                }
            }
            if let Some(token) = run.waiting.pop_front() {
                return Ok(Some(token));
            }
            if matcher.is_finished()? {
                return Ok(None);
            }
        }
        let queued = self.confirm(context)?;
        let Some(run) = &self.run else { return Ok(None) };
        let future = match queued {
            Some(future) => future,
            None => {
                let embed = context.output_embed().await?;
                match &run.matcher {
                    None => sample::sample(run.queue, embed, run.sampler),
                    Some(matcher) => {
                        sample_constrained(run.queue, embed, run.sampler, matcher.handle())
                    }
                }
            }
        };
        if ahead {
            self.ahead = context.look_ahead(run.sampler)?;
        }
        let token = match self.token(future).await {
            Ok(token) => token,
            Err(error) => return Err(self.give_up(context, error).await),
        };
        context.completed()?;
        context.arrived(token);
        Ok(Some(token))
    }

    async fn token(&mut self, future: HostFuture<Sampled>) -> Result<u32> {
        if !self.tells {
            return future.token().await;
        }
        let sampled = future.await?;
        let token = sampled.token;
        self.last = Some(sampled);
        Ok(token)
    }

    /// The future of the next token, if the step that was queued ahead leads to it.
    fn confirm(&mut self, context: &mut Context) -> Result<Option<HostFuture<Sampled>>> {
        let (queued, Some(run)) = (mem::take(&mut self.ahead), &mut self.run) else {
            return Ok(None);
        };
        let future = context.confirm(run.sampler)?;
        if queued && future.is_none() && self.counts {
            // A choice that the program has not seen must not count for penalties.
            self.seed = self.seed.map(|seed| seed.wrapping_add(1)); // not the same draws again
            sample::destroy_sampler(run.queue, run.sampler)?;
            let parameters = close(self.parameters.clone(), self.seed);
            run.sampler = sample::create_sampler(run.queue, &parameters)?;
            let known = context.known_tokens();
            let (given, generated) = known.split_at(run.given.min(known.len()));
            sample::feed_sampler(run.queue, run.sampler, given, false)?;
            sample::feed_sampler(run.queue, run.sampler, generated, true)?;
        }
        Ok(future)
    }

    /// Undoes the step ahead of a choice that has failed.
    async fn give_up(&mut self, context: &mut Context, error: Error) -> Error {
        if self.ahead {
            let _ = context.retract();
            if error.code != ErrorCode::FailedDependency {
                // There was no token to embed, so the queue has failed, which without the step it
                // had not.
                let _ = runtime::synchronize(context.queue()).await;
            }
        }
        error
    }

    /// Takes in a token of the program's own choice.
    pub fn accept(&mut self, token: u32) -> Result {
        let Some(run) = &mut self.run else {
            let message = "accept a token only after the first step";
            return Err(Error::new(ErrorCode::InvalidArgument, message));
        };
        if let Some(matcher) = &mut run.matcher {
            matcher.advance(&[token])?;
        }
        match self.counts {
            true => sample::feed_sampler(run.queue, run.sampler, &[token], true),
            false => Ok(()),
        }
    }

    /// Makes the server's sampler, and compiles the grammar, before the first step.
    pub async fn prepare(&mut self, context: &mut Context) -> Result {
        if self.run.is_some() {
            return Ok(());
        }
        let matcher = match &self.grammar {
            Some(grammar) => Some(grammar.matcher(context.model()).await?),
            None => None,
        };
        let queue = context.queue();
        let parameters = close(self.parameters.clone(), self.seed);
        let sampler = sample::create_sampler(queue, &parameters)?;
        let known = if self.counts { context.known_tokens() } else { Vec::new() };
        let given = known.len();
        self.run = Some(Run { queue, sampler, matcher, waiting: VecDeque::new(), given });
        match self.counts {
            true => sample::feed_sampler(queue, sampler, &known, false),
            false => Ok(()),
        }
    }

    /// Whether the text may end here: always, without a grammar.
    pub fn is_complete(&self) -> Result<bool> {
        match (&self.grammar, &self.run) {
            (None, _) => Ok(true),
            (_, Some(Run { matcher: Some(matcher), .. })) => matcher.is_accepting(),
            _ => Ok(false),
        }
    }
}

struct Run {
    queue: u32,
    sampler: u32,
    matcher: Option<Matcher>,
    /// Forced tokens that the matcher has consumed.
    waiting: VecDeque<u32>,
    /// Tokens before the first choice, if the sampler counts.
    given: usize,
}

impl Drop for Run {
    fn drop(&mut self) {
        // It fails at worst because a lost worker has taken the sampler with it.
        let _ = sample::destroy_sampler(self.queue, self.sampler);
    }
}
