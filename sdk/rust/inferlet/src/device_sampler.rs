// Generated from pie_py/wire/operations.py by `python -m pie_py.build.generate`; do not edit.
//! Choice by the server: the parameters of its samplers.

use crate::error::Result;
use crate::json::Value;
use crate::sampler_json::{read, Parameter};

/// Choice of a token by the server, among the whole vocabulary.
///
/// The steps go in the order of the contract's `create-sampler`, which says what each of them does,
/// unless `order` names another one.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSampler {
    /// Share of the most likely token's own probability that a token needs.
    pub plausibility: f32,
    /// Weights of the own logits, and of those of `mix-logits`: guidance is [s, 1 - s], contrastive
    /// decoding [1, -1].
    pub mix: Vec<f32>,
    /// Token ids to what is added to their logits; null rules a token out.
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
    /// Lists of token ids, 64 at most in each, that do not come as a whole.
    pub banned_sequences: Vec<Vec<u32>>,
    /// So many tokens are chosen before `end_tokens`.
    pub min_tokens: u32,
    /// Token ids that end the text.
    pub end_tokens: Vec<u32>,
    /// `multiplier * base ** (n - allowed_length)` is taken off a token that goes on with a
    /// repetition of n tokens, 64 at most.
    pub dry_multiplier: f32,
    /// The base of this power.
    pub dry_base: f32,
    /// Tokens that may be repeated.
    pub dry_allowed_length: u32,
    /// Token ids at which a repetition ends.
    pub dry_sequence_breakers: Vec<u32>,
    /// Added to the tokens that a SplitMix64 hash of the key and the token before favours.
    pub watermark_bias: f32,
    /// Share of the tokens that the hash favours.
    pub watermark_share: f32,
    /// Of the hash, below 2^48.
    pub watermark_key: u64,
    /// Divides the logits; 0 takes the most likely token of what is left, and ends the steps.
    pub temperature: f32,
    /// So many of the most likely tokens; 0 is all.
    pub top_k: u32,
    /// The fewest likely tokens that reach this mass.
    pub top_p: f32,
    /// Share of the most likely token's probability that a token needs.
    pub min_p: f32,
    /// Mass of the tokens whose surprise is nearest to the expected (Meister et al. 2022).
    pub typical_p: f32,
    /// Probability that a token needs.
    pub epsilon_cutoff: f32,
    /// The same, lower where the model is unsure (Hewitt et al. 2022).
    pub eta_cutoff: f32,
    /// Probability from which on a token is likely to XTC.
    pub xtc_threshold: f32,
    /// How often XTC rules out all likely tokens but the least likely of them.
    pub xtc_probability: f32,
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
            plausibility: 0.0,
            mix: vec![1.0],
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
            xtc_threshold: 0.1,
            xtc_probability: 0.0,
            order: Vec::new(),
            logprobs: 0,
            seed: None,
        }
    }
}

impl DeviceSampler {
    /// Reads parameters as the contract has them; what is not given is the default.
    ///
    /// Errors: `invalid-argument`, naming the parameter.
    pub fn from_json(given: &Value) -> Result<DeviceSampler> {
        let mut sampler = DeviceSampler::default();
        read(given, "plausibility", &mut sampler.plausibility)?;
        read(given, "mix", &mut sampler.mix)?;
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
        read(given, "watermark_bias", &mut sampler.watermark_bias)?;
        read(given, "watermark_share", &mut sampler.watermark_share)?;
        read(given, "watermark_key", &mut sampler.watermark_key)?;
        read(given, "temperature", &mut sampler.temperature)?;
        read(given, "top_k", &mut sampler.top_k)?;
        read(given, "top_p", &mut sampler.top_p)?;
        read(given, "min_p", &mut sampler.min_p)?;
        read(given, "typical_p", &mut sampler.typical_p)?;
        read(given, "epsilon_cutoff", &mut sampler.epsilon_cutoff)?;
        read(given, "eta_cutoff", &mut sampler.eta_cutoff)?;
        read(given, "xtc_threshold", &mut sampler.xtc_threshold)?;
        read(given, "xtc_probability", &mut sampler.xtc_probability)?;
        read(given, "order", &mut sampler.order)?;
        read(given, "logprobs", &mut sampler.logprobs)?;
        read(given, "seed", &mut sampler.seed)?;
        Ok(sampler)
    }

    /// The parameters as the contract wants them, without the seed and the closing brace.
    pub(crate) fn open_json(&self) -> String {
        let mut out = format!("{{\"logprobs\":{}", self.logprobs);
        self.plausibility.write("plausibility", &mut out);
        self.mix.write("mix", &mut out);
        self.logit_bias.write("logit_bias", &mut out);
        self.allowed_tokens.write("allowed_tokens", &mut out);
        self.repetition_penalty.write("repetition_penalty", &mut out);
        self.presence_penalty.write("presence_penalty", &mut out);
        self.frequency_penalty.write("frequency_penalty", &mut out);
        self.no_repeat_ngram_size.write("no_repeat_ngram_size", &mut out);
        self.banned_sequences.write("banned_sequences", &mut out);
        self.min_tokens.write("min_tokens", &mut out);
        self.end_tokens.write("end_tokens", &mut out);
        self.dry_multiplier.write("dry_multiplier", &mut out);
        self.dry_base.write("dry_base", &mut out);
        self.dry_allowed_length.write("dry_allowed_length", &mut out);
        self.dry_sequence_breakers.write("dry_sequence_breakers", &mut out);
        self.watermark_bias.write("watermark_bias", &mut out);
        self.watermark_share.write("watermark_share", &mut out);
        self.watermark_key.write("watermark_key", &mut out);
        self.temperature.write("temperature", &mut out);
        self.top_k.write("top_k", &mut out);
        self.top_p.write("top_p", &mut out);
        self.min_p.write("min_p", &mut out);
        self.typical_p.write("typical_p", &mut out);
        self.epsilon_cutoff.write("epsilon_cutoff", &mut out);
        self.eta_cutoff.write("eta_cutoff", &mut out);
        self.xtc_threshold.write("xtc_threshold", &mut out);
        self.xtc_probability.write("xtc_probability", &mut out);
        if !self.order.is_empty() {
            self.order.write("order", &mut out);
        }
        out
    }

    /// Whether a step counts the tokens of the context.
    pub(crate) fn counts(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Whether a step looks back at the tokens of the context.
    pub(crate) fn looks_back(&self) -> bool {
        self.counts()
            || self.no_repeat_ngram_size != 0
            || !self.banned_sequences.is_empty()
            || self.dry_multiplier != 0.0
            || self.watermark_bias != 0.0
    }
}
