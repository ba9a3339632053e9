//! The server's choice of tokens, as a generation uses it.

use std::collections::VecDeque;

use crate::context::{Context, RunHold};
use crate::device::ProgramSampler;
use crate::error::{invalid, Error, Result};
use crate::grammar::{sample_constrained, Grammar, Matcher};
use crate::json::{object, parse, Value};
use crate::sample::{self, Sampled};
use crate::sampler::{seed_member, Sampler};

/// A rule for the tokens of a generation: a [`Sampler`], or a device program with what it was given.
pub struct Rule {
    /// Parameters as members of an object. What formats floats is needed only where one is made.
    members: Vec<String>,
    seed: Option<u64>,
    is_program: bool,
}

impl From<Sampler> for Rule {
    fn from(sampler: Sampler) -> Rule {
        Rule { members: sampler.members(), seed: sampler.seed, is_program: false }
    }
}

impl From<ProgramSampler> for Rule {
    fn from(sampler: ProgramSampler) -> Rule {
        Rule { members: sampler.members(), seed: sampler.seed, is_program: true }
    }
}

impl<T: Clone + Into<Rule>> From<&T> for Rule {
    fn from(rule: &T) -> Rule {
        rule.clone().into()
    }
}

/// The server's choices in one generation.
pub(crate) struct Choice {
    rule: Rule,
    pub seed: Option<u64>,
    pub grammar: Option<Grammar>,
    pub forced: bool,
    /// The run under way, or the last one.
    run: Option<RunHold>,
    made: Option<Made>,
}

impl Choice {
    pub fn new(rule: Rule) -> Choice {
        Choice { seed: rule.seed, rule, grammar: None, forced: true, run: None, made: None }
    }

    /// True if the next token is a run's; starts one where it can.
    pub async fn runs(
        &mut self,
        context: &mut Context,
        most: usize,
        stops: &[u32],
        guesses: u32,
    ) -> Result<bool> {
        if let Some(run) = &self.run {
            if context.goes_on(run) {
                return Ok(true);
            }
        }
        if most < 2 || self.grammar.is_some() {
            // Each token's mask depends on the one before.
            return Ok(false);
        }
        let (sampler, embed) = self.queue_input(context).await?;
        self.run = context.start_run(sampler, embed, most, stops, guesses)?;
        Ok(self.run.is_some())
    }

    /// The next token with what the server reports of it, or `None` at the grammar's end.
    pub async fn choose(&mut self, context: &mut Context) -> Result<Option<Sampled>> {
        self.prepare(context).await?;
        let Some(made) = &mut self.made else {
            return Ok(None);
        };
        if let Some(matcher) = &mut made.matcher {
            if self.forced && made.waiting.is_empty() {
                let tokens = matcher.forced()?;
                if !tokens.is_empty() {
                    matcher.advance(&tokens)?;
                    if made.looks_back {
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
        let Some(made) = &self.made else {
            return Ok(None);
        };
        let sampled = match &made.matcher {
            None => sample::sample(made.queue, embed, sampler),
            Some(matcher) => sample_constrained(made.queue, embed, sampler, matcher.handle()),
        };
        context.outcome(sampled).await.map(Some)
    }

    /// The sampler, and the embed after which it chooses: all that is pending is queued.
    async fn queue_input(&mut self, context: &mut Context) -> Result<(u32, u32)> {
        self.prepare(context).await?;
        context.retract();
        let undone = self.run.take().is_some_and(|run| run.undone());
        let made = self.made.take_if(|made| undone && made.counts && !made.has_state);
        if let Some(made) = made {
            // A choice that the program has not seen must not count for penalties.
            self.seed = self.seed.map(|seed| seed.wrapping_add(1)); // not the same draws again
            self.make(context, None, made.given)?;
        } else if undone && self.made.as_ref().is_some_and(|made| made.counts) {
            return Err(Error::other(
                "tokens of this generation were undone, and its device program counts tokens \
                 and has state: begin a new generation",
            ));
        }
        let sampler = self.made.as_ref().map_or(0, |made| made.sampler);
        Ok((sampler, context.output_embed().await?))
    }

    /// Takes in a token of the program's own choice.
    pub fn accept(&mut self, token: u32) -> Result {
        let Some(made) = &mut self.made else {
            return match self.grammar.is_some() || self.rule.is_program {
                true => invalid("accept a token only after the first step"),
                false => Ok(()),
            };
        };
        if let Some(matcher) = &mut made.matcher {
            matcher.advance(&[token])?;
        }
        match made.looks_back {
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

    fn parameters(&self) -> String {
        let members = self.rule.members.iter().cloned();
        object(members.chain(self.seed.map(seed_member)))
    }

    /// Makes the sampler, and feeds it the context's tokens; of these, the first were given.
    fn make(&mut self, context: &Context, matcher: Option<Matcher>, given: usize) -> Result {
        let queue = context.queue();
        let sampler = sample::create_sampler(queue, &self.parameters())?;
        let known = context.known_tokens();
        let (given, generated) = known.split_at(given.min(known.len()));
        let mut made = Made {
            queue,
            sampler,
            matcher,
            looks_back: false,
            counts: false,
            has_state: false,
            waiting: VecDeque::new(),
            given: given.len(),
        };
        let facts = parse(&sample::sampler_facts(queue, sampler)?)?;
        let is = |name: &str| facts.get(name).and_then(Value::as_bool).unwrap_or_default();
        made.looks_back = is("looks_back");
        made.counts = is("counts");
        made.has_state = is("has_state");
        for (tokens, generated) in [(given, false), (generated, true)] {
            if made.looks_back && !tokens.is_empty() {
                sample::feed_sampler(queue, sampler, tokens, generated)?;
            }
        }
        self.made = Some(made);
        Ok(())
    }

    /// True if the text may end here: always, without a grammar.
    pub fn is_complete(&self) -> Result<bool> {
        match (&self.grammar, &self.made) {
            (None, _) => Ok(true),
            (_, Some(Made { matcher: Some(matcher), .. })) => matcher.is_accepting(),
            _ => Ok(false),
        }
    }
}

/// The server's part of a choice.
struct Made {
    queue: u32,
    sampler: u32,
    matcher: Option<Matcher>,
    // What the sampler's programs need, see `sample::sampler_facts`.
    looks_back: bool,
    counts: bool,
    has_state: bool,
    /// Forced tokens that the matcher has consumed.
    waiting: VecDeque<u32>,
    /// Tokens before the first choice.
    given: usize,
}

impl Drop for Made {
    fn drop(&mut self) {
        // It fails at worst because a lost worker has taken the sampler with it.
        let _ = sample::destroy_sampler(self.queue, self.sampler);
    }
}
