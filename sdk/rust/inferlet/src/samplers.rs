//! Ready-made device programs of the server's library:
//! `context.generate(samplers::mirostat([("mu", 10.0), ("tau", 5.0), ("rate", 0.1)]))`.
//!
//! The library's rules, such as `top_p(logits, p)` and `repetition_penalty(logits, factor)`, are called
//! in texts of [`device::program`](crate::device::program). `pie_py/device_programs/rules/` has the
//! texts of all.

use crate::device::{named, ProgramSampler, Values};

/// Top-p at a temperature, of `temperature` and `p`.
pub fn tempered(given: impl Into<Values>) -> ProgramSampler {
    named("tempered").with(given)
}

/// Keeps the surprise at `tau` bits, of `mu`, `tau` and `rate` (Basu et al. 2021, version 2).
pub fn mirostat(given: impl Into<Values>) -> ProgramSampler {
    named("mirostat").with(given)
}

/// A lower temperature where the model is sure, of `temperature` and `theta` (Zhang et al. 2024).
pub fn entropy_temperature(given: impl Into<Values>) -> ProgramSampler {
    named("entropy_temperature").with(given)
}

/// Draws by a key and the newest tokens, of `temperature` and a whole `key` (Aaronson and Kirchner).
pub fn gumbel_watermark(given: impl Into<Values>) -> ProgramSampler {
    named("gumbel_watermark").with(given)
}

/// A tournament by a keyed hash, of `temperature` and a whole `key` (Dathathri et al. 2024).
pub fn synthid(given: impl Into<Values>) -> ProgramSampler {
    named("synthid").with(given)
}

/// Sequences of tokens as lists of one length, with -1 before the shorter ones: as the rule
/// `banned_sequences` takes them.
pub fn padded(sequences: &[Vec<u32>]) -> Vec<Vec<i64>> {
    let size = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let pad = |one: &Vec<u32>| {
        let missing = std::iter::repeat(-1).take(size - one.len());
        missing.chain(one.iter().map(|&token| token.into())).collect()
    };
    sequences.iter().map(pad).collect()
}
