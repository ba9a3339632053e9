//! The server's choice of tokens, as a generation uses it.

use std::collections::VecDeque;
use std::fmt::Write;

use crate::context::{Context, Drafts, Guessing, RunHold};
use crate::device::{ProgramSampler, Values};
use crate::device_sampler::DeviceSampler;
use crate::error::{invalid, Error, ErrorCode, Result};
use crate::grammar::{sample_constrained, Grammar, Matcher};
use crate::sample::{self, Sampled};
use crate::sampler::Sampler;

impl DeviceSampler {
    /// The parameters as the contract wants them.
    ///
    /// Errors: as [`DeviceSampler::resolved`].
    pub fn to_json(&self) -> Result<String> {
        let open = match self.resolved()? {
            Some(program) => program.open_json(),
            None => self.open_json(),
        };
        Ok(close(open, self.seed))
    }
}

fn close(mut parameters: String, seed: Option<u64>) -> String {
    if let Some(seed) = seed {
        let _ = write!(parameters, ",\"seed\":{seed}");
    }
    parameters.push('}');
    parameters
}

/// What chooses the tokens of a generation: a [`Sampler`], a [`DeviceSampler`], or a device program
/// with what it was given.
pub struct Rule {
    pub(crate) sampler: Sampler,
    pub(crate) device: Option<Choice>,
}

impl From<Sampler> for Rule {
    fn from(sampler: Sampler) -> Rule {
        Rule { sampler, device: None }
    }
}

impl From<&DeviceSampler> for Rule {
    fn from(sampler: &DeviceSampler) -> Rule {
        Rule { sampler: Sampler::greedy(), device: Some(Choice::new(sampler)) }
    }
}

impl From<DeviceSampler> for Rule {
    fn from(sampler: DeviceSampler) -> Rule {
        Rule::from(&sampler)
    }
}

impl From<&ProgramSampler> for Rule {
    fn from(sampler: &ProgramSampler) -> Rule {
        Rule { sampler: Sampler::greedy(), device: Some(Choice::program(sampler)) }
    }
}

impl From<ProgramSampler> for Rule {
    fn from(sampler: ProgramSampler) -> Rule {
        Rule::from(&sampler)
    }
}

/// The server's choices in one generation. What formats floats is needed only where one is made.
pub(crate) struct Choice {
    /// Or why there are none, which the first step says.
    parameters: Result<String>,
    counts: bool,
    looks_back: bool,
    /// The device program that chooses, and whether some of what it was given changes.
    program: Option<ProgramSampler>,
    has_state: bool,
    /// Contexts whose logits are read: this one, and those beside it.
    pub weights: usize,
    pub seed: Option<u64>,
    pub grammar: Option<Grammar>,
    pub forced: bool,
    /// A program that chooses what layers read, as the contract wants it.
    pub attend: Option<String>,
    /// Last tokens that have to run for that program, which is told what they attend to.
    pub told: usize,
    /// The run under way, or the last one.
    run: Option<RunHold>,
    made: Option<Made>,
}

impl Choice {
    pub fn new(sampler: &DeviceSampler) -> Choice {
        match sampler.resolved() {
            Ok(Some(program)) => Choice::program(&program),
            Ok(None) => Choice::built_in(Ok(sampler.open_json()), sampler.seed),
            Err(error) => Choice::built_in(Err(error), None),
        }
    }

    /// The choice of a plain sampler.
    pub fn plain(sampler: &Sampler) -> Choice {
        Choice::built_in(Ok(sampler.open_json()), sampler.seed())
    }

    fn built_in(parameters: Result<String>, seed: Option<u64>) -> Choice {
        Choice {
            parameters,
            counts: false,
            looks_back: false,
            program: None,
            has_state: false,
            weights: 1,
            seed,
            grammar: None,
            forced: true,
            attend: None,
            told: 0,
            run: None,
            made: None,
        }
    }

    /// The choice of a device program.
    pub fn program(sampler: &ProgramSampler) -> Choice {
        Choice {
            parameters: Ok(sampler.open_json()),
            counts: sampler.counts,
            looks_back: sampler.looks_back,
            program: Some(sampler.clone()),
            has_state: sampler.has_state(),
            weights: 1 + sampler.beside,
            seed: sampler.seed,
            grammar: None,
            forced: true,
            attend: None,
            told: 0,
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
        guessing: &Guessing,
        drafts: Option<&mut Drafts<'_>>,
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
        let needed = self.attend.is_some();
        let Some(drafts) = drafts else {
            let (sampler, embed) = self.queue_input(context).await?;
            self.run = context.start_run(sampler, embed, most, stops, guessing, needed)?;
            return Ok(self.run.is_some());
        };
        context.retract()?;
        drafts.follow(&context.known_tokens()).await?;
        let (sampler, embed) = self.queue_input(context).await?;
        let alone = Guessing::default();
        self.run = context.start_run(sampler, embed, most, stops, &alone, needed)?;
        if let Some(run) = &self.run {
            drafts.start(run, &self.all_parameters()?, guessing.most)?;
        }
        Ok(self.run.is_some())
    }

    /// The next token with what the server reports of it, or `None` at the grammar's end.
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
            let hidden = other.output_embed(0).await?;
            sample::mix_logits(other.queue(), hidden, context.queue(), sampler)?;
        }
        let Some(made) = &self.made else {
            return Ok(None);
        };
        let sampled = match &made.matcher {
            None => sample::sample(made.queue, embed, sampler),
            Some(matcher) => sample_constrained(made.queue, embed, sampler, matcher.handle()),
        };
        let sampled = context.outcome(sampled).await;
        for other in beside {
            match &sampled {
                Ok(_) => other.all_ran(),
                Err(error) => other.recover(error),
            }
        }
        sampled.map(Some)
    }

    /// The sampler, and the embed after which it chooses: all that is pending is queued.
    async fn queue_input(&mut self, context: &mut Context) -> Result<(u32, u32)> {
        self.prepare(context).await?;
        context.retract()?;
        let undone = self.run.take().is_some_and(|run| run.undone());
        if undone && self.counts {
            if self.has_state {
                return Err(Error::other(
                    "tokens of this generation were undone, and its device program counts tokens \
                     and has state: begin a new generation",
                ));
            }
            // A choice that the program has not seen must not count for penalties.
            self.seed = self.seed.map(|seed| seed.wrapping_add(1)); // not the same draws again
            if let Some(made) = self.made.take() {
                self.make(context, None, made.given)?;
            }
        }
        let embed = context.output_embed(self.told).await?;
        self.told = 0;
        Ok((self.made.as_ref().map_or(0, |made| made.sampler), embed))
    }

    /// What the device program was given, with its state after the tokens so far.
    pub async fn state(&mut self, context: &mut Context) -> Result<Values> {
        let (Some(program), Some(made)) = (&self.program, &self.made) else {
            return invalid("no device program has chosen a token of this generation");
        };
        context.retract()?;
        program.values().after(&sample::read_state(made.queue, made.sampler).await?)
    }

    /// Gives the device program other values of some names, from the next token on.
    pub fn put(&mut self, context: &mut Context, values: Values) -> Result {
        let (Some(program), Some(made)) = (&self.program, &self.made) else {
            return invalid("no device program has chosen a token of this generation");
        };
        let again = program.given_again(values.clone())?;
        context.retract()?;
        sample::write_state(made.queue, made.sampler, &values.to_json()?)?;
        self.parameters = Ok(again.open_json());
        self.program = Some(again);
        Ok(())
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

    fn all_parameters(&self) -> Result<String> {
        let mut parameters = self.parameters.clone()?;
        if let Some(attend) = &self.attend {
            let _ = write!(parameters, ",\"attend\":{attend}");
        }
        Ok(close(parameters, self.seed))
    }

    /// Makes the sampler, and feeds it the context's tokens; of these, the first were given.
    fn make(&mut self, context: &Context, matcher: Option<Matcher>, given: usize) -> Result {
        let queue = context.queue();
        let sampler = sample::create_sampler(queue, &self.all_parameters()?)?;
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
