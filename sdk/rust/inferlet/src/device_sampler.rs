//! Choice by the server, where the model runs.

use std::fmt::Write;

use crate::device::{self, draw, where_, ProgramSampler, State, Tensor, Values};
use crate::error::{invalid, Result};
use crate::json::Value;
use crate::sampler_json::read;
use crate::samplers;

/// Tokens that sequences are looked for in: as many as the server remembers.
const LOOK_BACK: i64 = 4096;
/// Of top-k: beyond this all tokens are sorted.
const SORTED: u32 = 256;

/// Choice of a token by the server, among the whole vocabulary.
///
/// The steps go in the order of the fields, that of `transformers`; each looks at what those before
/// have left. A grammar or mask comes before them. Temperature, top-k, top-p and min-p are built into
/// the server; any other step makes a device program of [`samplers`], where another order, and
/// further rules, are a function of one's own.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSampler {
    /// Token ids to what is added to their logits; `None` rules a token out.
    pub logit_bias: Vec<(u32, Option<f32>)>,
    /// Token ids; all others are ruled out.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Of tokens given and generated, a logit above 0 is divided by it, one below multiplied.
    pub repetition_penalty: f32,
    /// Taken off tokens generated, once.
    pub presence_penalty: f32,
    /// Taken off tokens generated, each time.
    pub frequency_penalty: f32,
    /// No sequence of so many tokens comes twice.
    pub no_repeat_ngram_size: u32,
    /// Lists of token ids that do not come as a whole.
    pub banned_sequences: Vec<Vec<u32>>,
    /// So many tokens are chosen before `end_tokens`.
    pub min_tokens: u32,
    /// Token ids that end the text.
    pub end_tokens: Vec<u32>,
    /// `multiplier * base ** (n - allowed_length)` is taken off a token that goes on with a
    /// repetition of n tokens, 64 at most, among the newest 1 024.
    pub dry_multiplier: f32,
    /// The base of this power.
    pub dry_base: f32,
    /// Tokens that may be repeated.
    pub dry_allowed_length: u32,
    /// Token ids at which a repetition ends.
    pub dry_sequence_breakers: Vec<u32>,
    /// Divides the logits; 0 takes the most likely token of what is left, and ends the steps.
    pub temperature: f32,
    /// So many of the most likely tokens; 0 is all.
    pub top_k: u32,
    /// The fewest likely tokens that reach this mass.
    pub top_p: f32,
    /// Share of the most likely token's probability that a token needs.
    pub min_p: f32,
    /// Mass of the tokens whose surprise is nearest to the expected.
    pub typical_p: f32,
    /// Probability that a token needs.
    pub epsilon_cutoff: f32,
    /// The same, lower where the model is unsure.
    pub eta_cutoff: f32,
    /// Probability from which on a token is likely to XTC.
    pub xtc_threshold: f32,
    /// How often XTC rules out all likely tokens but the least likely of them.
    pub xtc_probability: f32,
    /// The number of most likely tokens that each step also reports.
    pub logprobs: u32,
    /// Same seed, same tokens; by default the server draws one.
    pub seed: Option<u64>,
}

impl Default for DeviceSampler {
    fn default() -> DeviceSampler {
        DeviceSampler {
            logit_bias: Vec::new(),
            allowed_tokens: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            no_repeat_ngram_size: 0,
            banned_sequences: Vec::new(),
            min_tokens: 0,
            end_tokens: Vec::new(),
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_sequence_breakers: Vec::new(),
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            xtc_threshold: 0.1,
            xtc_probability: 0.0,
            logprobs: 0,
            seed: None,
        }
    }
}

impl DeviceSampler {
    /// Reads the fields by their names; what is not given is the default.
    ///
    /// Errors: `invalid-argument`, naming the field.
    pub fn from_json(given: &Value) -> Result<DeviceSampler> {
        let mut sampler = DeviceSampler::default();
        read(given, "logit_bias", &mut sampler.logit_bias)?;
        read(given, "allowed_tokens", &mut sampler.allowed_tokens)?;
        read(given, "repetition_penalty", &mut sampler.repetition_penalty)?;
        read(given, "presence_penalty", &mut sampler.presence_penalty)?;
        read(given, "frequency_penalty", &mut sampler.frequency_penalty)?;
        read(given, "no_repeat_ngram_size", &mut sampler.no_repeat_ngram_size)?;
        read(given, "banned_sequences", &mut sampler.banned_sequences)?;
        read(given, "min_tokens", &mut sampler.min_tokens)?;
        read(given, "end_tokens", &mut sampler.end_tokens)?;
        read(given, "dry_multiplier", &mut sampler.dry_multiplier)?;
        read(given, "dry_base", &mut sampler.dry_base)?;
        read(given, "dry_allowed_length", &mut sampler.dry_allowed_length)?;
        read(given, "dry_sequence_breakers", &mut sampler.dry_sequence_breakers)?;
        read(given, "temperature", &mut sampler.temperature)?;
        read(given, "top_k", &mut sampler.top_k)?;
        read(given, "top_p", &mut sampler.top_p)?;
        read(given, "min_p", &mut sampler.min_p)?;
        read(given, "typical_p", &mut sampler.typical_p)?;
        read(given, "epsilon_cutoff", &mut sampler.epsilon_cutoff)?;
        read(given, "eta_cutoff", &mut sampler.eta_cutoff)?;
        read(given, "xtc_threshold", &mut sampler.xtc_threshold)?;
        read(given, "xtc_probability", &mut sampler.xtc_probability)?;
        read(given, "logprobs", &mut sampler.logprobs)?;
        read(given, "seed", &mut sampler.seed)?;
        Ok(sampler)
    }

    /// What the server has built in, as the contract wants it, without the seed and the closing
    /// brace.
    pub(crate) fn open_json(&self) -> String {
        let DeviceSampler { logprobs, temperature, top_k, top_p, min_p, .. } = self;
        let mut out = format!("{{\"logprobs\":{logprobs},\"top_k\":{top_k}");
        for (name, value) in [("temperature", temperature), ("top_p", top_p), ("min_p", min_p)] {
            let _ = write!(out, ",\"{name}\":{value:?}");
        }
        out
    }

    /// The device program that it stands for; none if the server has all of it built in.
    ///
    /// Errors: `invalid-argument` if a number is outside its range, or `allowed_tokens` is empty.
    pub fn resolved(&self) -> Result<Option<ProgramSampler>> {
        self.check()?;
        let draws = self.temperature != 0.0;
        let mut steps = Steps::default();
        self.add_before(&mut steps);
        let before = steps.of.len();
        if draws {
            self.add_built_in(&mut steps);
        }
        let built_in = steps.of.len() - before;
        if draws {
            self.add_behind(&mut steps);
        }
        if steps.of.len() == built_in {
            return Ok(None);
        }
        let rule = device::program(|logits, state| {
            let left = steps.of.iter().fold(logits, |logits, step| step(logits, state));
            let token = if draws { draw(left) } else { left.argmax() };
            where_(left.max().gt(f64::NEG_INFINITY), token, -1) // none, if all are ruled out
        });
        let sampler = rule.with(steps.given.clone())?.logprobs(self.logprobs);
        Ok(Some(match self.seed {
            Some(seed) => sampler.seed(seed),
            None => sampler,
        }))
    }

    /// A program would compute with whatever it is given, and the server sees numbers only. Numbers
    /// end far from where `f32` loses its grip.
    fn check(&self) -> Result<()> {
        let ranges = [
            ("repetition_penalty", self.repetition_penalty, 1e-9, 1e4),
            ("presence_penalty", self.presence_penalty, -1e4, 1e4),
            ("frequency_penalty", self.frequency_penalty, -1e4, 1e4),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size as f32, 0.0, 64.0),
            ("min_tokens", self.min_tokens as f32, 0.0, 16_777_216.0),
            ("dry_multiplier", self.dry_multiplier, 0.0, 1e4),
            ("dry_base", self.dry_base, 1.0, 100.0),
            ("dry_allowed_length", self.dry_allowed_length as f32, 0.0, 64.0),
            ("temperature", self.temperature, 0.0, 1e4),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("typical_p", self.typical_p, 0.0, 1.0),
            ("epsilon_cutoff", self.epsilon_cutoff, 0.0, 1.0),
            ("eta_cutoff", self.eta_cutoff, 0.0, 1.0),
            ("xtc_threshold", self.xtc_threshold, 0.0, 1.0),
            ("xtc_probability", self.xtc_probability, 0.0, 1.0),
        ];
        for (name, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return invalid(format!("{name} is {value}; it is {least} to {most}"));
            }
        }
        for &(token, bias) in &self.logit_bias {
            let bias = bias.unwrap_or(f32::NEG_INFINITY);
            if bias != f32::NEG_INFINITY && !(-1e4..=1e4).contains(&bias) {
                return invalid(format!(
                    "logit_bias of token {token} is {bias}; it is -10000 to 10000, or None"
                ));
            }
        }
        if self.allowed_tokens.as_ref().is_some_and(Vec::is_empty) {
            return invalid("allowed_tokens is empty: it would rule out every token");
        }
        Ok(())
    }

    /// What comes before the temperature.
    fn add_before(&self, steps: &mut Steps) {
        if !self.logit_bias.is_empty() {
            let (tokens, values): (Vec<u32>, Vec<f32>) = self
                .logit_bias
                .iter()
                .map(|&(token, bias)| (token, bias.unwrap_or(f32::NEG_INFINITY)))
                .unzip();
            steps.give(Values::default().and("logit_bias", tokens).and("biases", values));
            steps.add(|x, s| samplers::logit_bias(x, s.get("logit_bias"), s.get("biases")));
        }
        if let Some(allowed) = &self.allowed_tokens {
            steps.give([("allowed_tokens", allowed.clone())]);
            steps.add(|x, s| samplers::allowed_tokens(x, s.get("allowed_tokens")));
        }
        if self.repetition_penalty != 1.0 {
            steps.give([("repetition", self.repetition_penalty)]);
            steps.add(|x, s| samplers::repetition_penalty(x, s.get("repetition")));
        }
        if self.presence_penalty != 0.0 {
            steps.give([("presence", self.presence_penalty)]);
            steps.add(|x, s| samplers::presence_penalty(x, s.get("presence")));
        }
        if self.frequency_penalty != 0.0 {
            steps.give([("frequency", self.frequency_penalty)]);
            steps.add(|x, s| samplers::frequency_penalty(x, s.get("frequency")));
        }
        if self.no_repeat_ngram_size != 0 {
            let size = self.no_repeat_ngram_size.into();
            steps.add(move |x, _| samplers::no_repeat_ngram(x, size, LOOK_BACK - size + 1));
        }
        if !self.banned_sequences.is_empty() {
            steps.give([("banned_sequences", samplers::padded(&self.banned_sequences))]);
            steps.add(|x, s| samplers::banned_sequences(x, s.get("banned_sequences")));
        }
        if self.min_tokens != 0 && !self.end_tokens.is_empty() {
            steps.give(
                Values::from([("least", self.min_tokens)]).and("end_tokens", self.end_tokens.clone()),
            );
            steps.add(|x, s| samplers::min_tokens(x, s.get("least"), s.get("end_tokens")));
        }
        if self.dry_multiplier != 0.0 {
            let numbers = [("multiplier", self.dry_multiplier), ("base", self.dry_base)];
            steps.give(Values::from(numbers).and("free", self.dry_allowed_length));
            let breaks = !self.dry_sequence_breakers.is_empty();
            if breaks {
                steps.give([("dry_sequence_breakers", self.dry_sequence_breakers.clone())]);
            }
            steps.add(move |x, s| {
                let breakers = breaks.then(|| s.get("dry_sequence_breakers"));
                let (multiplier, base) = (s.get("multiplier"), s.get("base"));
                samplers::dry(x, multiplier, base, s.get("free"), breakers, 1024)
            });
        }
    }

    /// What the server does without a program as well.
    fn add_built_in(&self, steps: &mut Steps) {
        if self.temperature != 1.0 {
            steps.give([("temperature", self.temperature)]);
            steps.add(|x, s| x / s.get("temperature"));
        }
        let k = self.top_k;
        if k > SORTED {
            steps.give([("k", k)]);
            steps.add(|x, s| samplers::top_k(x, s.get("k")));
        } else if k > 0 {
            steps.add(move |x, _| samplers::top_k(x, k));
        }
        if self.top_p < 1.0 {
            steps.give([("p", self.top_p)]);
            steps.add(|x, s| samplers::top_p(x, s.get("p")));
        }
        if self.min_p != 0.0 {
            steps.give([("least_p", self.min_p)]);
            steps.add(|x, s| samplers::min_p(x, s.get("least_p")));
        }
    }

    /// What comes behind it.
    fn add_behind(&self, steps: &mut Steps) {
        if self.typical_p < 1.0 {
            steps.give([("typical", self.typical_p)]);
            steps.add(|x, s| samplers::typical_p(x, s.get("typical")));
        }
        if self.epsilon_cutoff != 0.0 {
            steps.give([("epsilon", self.epsilon_cutoff)]);
            steps.add(|x, s| samplers::epsilon_cutoff(x, s.get("epsilon")));
        }
        if self.eta_cutoff != 0.0 {
            steps.give([("eta", self.eta_cutoff)]);
            steps.add(|x, s| samplers::eta_cutoff(x, s.get("eta")));
        }
        if self.xtc_probability != 0.0 {
            steps.give([("threshold", self.xtc_threshold), ("chance", self.xtc_probability)]);
            steps.add(|x, s| samplers::xtc(x, s.get("threshold"), s.get("chance")));
        }
    }
}

type Step = Box<dyn Fn(Tensor, &State) -> Tensor>;

/// Steps, and the state that they read: what is of the state makes no other program.
#[derive(Default)]
struct Steps {
    given: Values,
    of: Vec<Step>,
}

impl Steps {
    fn give(&mut self, values: impl Into<Values>) {
        self.given = std::mem::take(&mut self.given).with(values);
    }

    fn add(&mut self, step: impl Fn(Tensor, &State) -> Tensor + 'static) {
        self.of.push(Box::new(step));
    }
}
