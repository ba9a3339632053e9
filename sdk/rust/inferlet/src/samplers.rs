//! Rules for choosing tokens, each a short function for device programs, and ready-made programs.
//!
//! A filter takes logits `[vocabulary]` and returns others; minus infinity rules a token out. Filters
//! are put together in a program of one's own:
//!
//! ```ignore
//! let mine = device::program(|logits, state| {
//!     let logits = samplers::repetition_penalty(logits, 1.2);
//!     device::draw(samplers::top_p(logits / state.get("temperature"), 0.9))
//! });
//! context.generate(mine.with([("temperature", 0.7)])?);
//! ```
//!
//! Numbers may be Rust's, which make another program for each value, or of the state. The programs
//! are functions for [`device::program`](crate::device::program).

#![allow(clippy::erasing_op)] // `* 0` makes zeros of a tensor's sizes

use std::f64::consts::LN_2;

use crate::device::{
    counts, draw, given, hash, iota, maximum, minimum, newest, nucleus, step, uniform, where_,
    State, Tensor, Value, VOCABULARY,
};

const NEVER: f64 = f64::NEG_INFINITY;

// What rules tokens out by how likely they are

/// The `k` most likely tokens.
#[track_caller]
pub fn top_k(logits: Tensor, k: impl Into<Value>) -> Tensor {
    match k.into() {
        Value::Int(k) => only(logits, logits.top(k), true),
        k => only(logits, logits.descending(), iota(VOCABULARY).lt(k)),
    }
}

/// The fewest likely tokens that reach a mass.
#[track_caller]
pub fn top_p(logits: Tensor, p: impl Into<Value>) -> Tensor {
    logits.where_(nucleus(logits, p), NEVER)
}

/// Tokens that are at least `p` times as likely as the likeliest.
#[track_caller]
pub fn min_p(logits: Tensor, p: impl Into<Value>) -> Tensor {
    let bar = match p.into() {
        Value::Tensor(p) => p.log().into(),
        Value::Float(p) => Value::Float(p.ln()),
        Value::Int(p) => Value::Float((p as f64).ln()),
        p => p,
    };
    logits.where_((logits - logits.max()).ge(bar), NEVER)
}

/// Tokens at least as likely as `a` times the square of the likeliest one's probability.
#[track_caller]
pub fn top_a(logits: Tensor, a: impl Into<Value>) -> Tensor {
    let chances = logits.softmax();
    let best = chances.max();
    likely(logits, chances, best.like(a) * best * best)
}

/// Tokens with a probability of at least `epsilon`; and in any case the likeliest.
#[track_caller]
pub fn epsilon_cutoff(logits: Tensor, epsilon: impl Into<Value>) -> Tensor {
    likely(logits, logits.softmax(), epsilon)
}

/// As `epsilon_cutoff`, less where the model is unsure (Hewitt et al. 2022).
#[track_caller]
pub fn eta_cutoff(logits: Tensor, epsilon: impl Into<Value>) -> Tensor {
    let epsilon = epsilon.into();
    let (logs, entropy) = entropy_of(logits);
    let root = match epsilon {
        Value::Tensor(epsilon) => epsilon.sqrt().into(),
        Value::Float(epsilon) => Value::Float(epsilon.sqrt()),
        other => other,
    };
    let bar = (-entropy).exp() * root;
    likely(logits, logs.exp(), minimum(bar, epsilon))
}

/// Tokens whose surprise is nearest to the expected, of a mass (Meister et al. 2022).
#[track_caller]
pub fn typical_p(logits: Tensor, p: impl Into<Value>) -> Tensor {
    let (logs, entropy) = entropy_of(logits);
    let distance = (-logs - entropy).abs();
    let order = distance.argsort();
    let short = logs.exp().at(order).cumsum().lt(p);
    let last = minimum(short.to_int().sum(), iota(VOCABULARY).max());
    logits.where_(distance.le(distance.at(order.at(last))), NEVER)
}

/// The most likely of `count` tokens, up to where their curve is flat (Phénix and Egan 2019).
#[track_caller]
pub fn tail_free(logits: Tensor, z: impl Into<Value>, count: i64) -> Tensor {
    let order = logits.top(count);
    let chances = logits.softmax().at(order);
    let slopes = chances.slice(0, -1) - chances.slice(1, None);
    let bends = (slopes.slice(0, -1) - slopes.slice(1, None)).abs();
    let weight = (bends / bends.sum()).cumsum();
    // The first one stays, and each whose bends before it have not reached z.
    let kept = weight.le(z) | iota(count - 2).eq(0);
    only(logits, order.slice(0, count - 2), kept)
}

/// Sometimes without all likely tokens but the least likely of them.
#[track_caller]
pub fn xtc(logits: Tensor, threshold: impl Into<Value>, probability: impl Into<Value>) -> Tensor {
    let chances = logits.softmax();
    let likely = chances.ge(threshold) & chances.gt(0.0);
    // From the end: of equal ones the last.
    let least = (-logits).where_(likely, NEVER).flip().argmax();
    let tokens = iota(VOCABULARY);
    let out = likely & tokens.ne(tokens.max() - least) & uniform(0).lt(probability);
    logits.where_(!out, NEVER)
}

// What looks at the text

/// Of a token that occurs, a logit above 0 is divided, one below multiplied (CTRL, 2019).
#[track_caller]
pub fn repetition_penalty(logits: Tensor, factor: impl Into<Value>) -> Tensor {
    let factor = factor.into();
    let less = where_(logits.gt(0.0), logits / factor, logits * factor);
    less.where_(counts().gt(0) | given(), logits)
}

/// Taken off tokens that were generated, once.
#[track_caller]
pub fn presence_penalty(logits: Tensor, penalty: impl Into<Value>) -> Tensor {
    logits - counts().gt(0).to_float() * penalty.into()
}

/// Taken off tokens that were generated, each time.
#[track_caller]
pub fn frequency_penalty(logits: Tensor, penalty: impl Into<Value>) -> Tensor {
    logits - counts().to_float() * penalty.into()
}

/// No sequence of `size` tokens comes twice, among the newest `look_back`.
#[track_caller]
pub fn no_repeat_ngram(logits: Tensor, size: i64, look_back: i64) -> Tensor {
    let (tokens, lengths) = repeated(size - 1, look_back, None);
    let banned = lengths.ge(size - 1) & tokens.ge(0);
    logits.where_(!nothing().scatter_max(tokens, banned), NEVER)
}

/// None of some sequences of tokens comes as a whole: what [`padded`] makes of them, of the state.
#[track_caller]
pub fn banned_sequences(logits: Tensor, sequences: Tensor) -> Tensor {
    let size = sequences.type_of().shape[1];
    let last = sequences.transpose().at(size - 1);
    let mut follows = last.ge(0);
    if size > 1 {
        let before = sequences.slice(0, size - 1);
        follows = follows & (before.eq(newest(size - 1)) | before.lt(0)).all();
    }
    logits.where_(!nothing().scatter_max(last, follows), NEVER)
}

/// Sequences of tokens as lists of one length, with -1 before the shorter ones.
pub fn padded(sequences: &[Vec<u32>]) -> Vec<Vec<i64>> {
    let size = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let pad = |one: &Vec<u32>| {
        let before = std::iter::repeat_n(-1, size - one.len());
        before.chain(one.iter().map(|&token| token.into())).collect()
    };
    sequences.iter().map(pad).collect()
}

/// Less likely what goes on with a repetition of n tokens, by `multiplier * base ** (n - allowed)`.
/// A repetition ends at the breakers, a list of the state, and is looked for among the newest
/// `look_back` tokens.
#[track_caller]
pub fn dry(
    logits: Tensor,
    multiplier: impl Into<Value>,
    base: impl Into<Value>,
    allowed: impl Into<Value>,
    breakers: Option<Tensor>,
    look_back: i64,
) -> Tensor {
    let allowed = allowed.into();
    let (tokens, lengths) = repeated(64, look_back, breakers);
    let excess = (lengths - allowed).to_float();
    let power = excess.like(base).pow(excess) * multiplier.into();
    let penalty = where_(lengths.ge(allowed) & lengths.gt(0), power, 0.0);
    logits - (iota(VOCABULARY) * 0).to_float().scatter_max(tokens, penalty)
}

/// Likelier what a hash of the token before favours (Kirchenbauer et al. 2023).
#[track_caller]
pub fn watermark(logits: Tensor, bias: impl Into<Value>, share: f64, key: i64) -> Tensor {
    let before = newest(1).at(0);
    let drawn = (hash(hash(key + before * 0, before), iota(VOCABULARY)) >> 40) & 0xFFFFFF;
    let green = drawn.to_float().lt(share * 16_777_216.0) & before.ge(0);
    logits + green.to_float() * bias.into()
}

// What is asked for by token

/// Values added to tokens' logits: lists of the same length, of the state.
#[track_caller]
pub fn logit_bias(logits: Tensor, tokens: Tensor, values: Tensor) -> Tensor {
    logits.scatter_add(tokens, values)
}

/// None but some tokens: a list, of the state.
#[track_caller]
pub fn allowed_tokens(logits: Tensor, tokens: Tensor) -> Tensor {
    only(logits, tokens, true)
}

/// Not one of the tokens that end the text before `count` were chosen.
#[track_caller]
pub fn min_tokens(logits: Tensor, count: impl Into<Value>, ends: Tensor) -> Tensor {
    let early = step().lt(count) & nothing().scatter_max(ends, true);
    logits.where_(!early, NEVER)
}

/// Token healing: the first token is one of some, those that begin with what was cut off.
#[track_caller]
pub fn healed(logits: Tensor, tokens: Tensor) -> Tensor {
    where_(step().eq(0), allowed_tokens(logits, tokens), logits)
}

// What a context beside says as well: `device::beside(0)`

/// So many times as far from a text without the prompt (Sanchez et al. 2023).
#[track_caller]
pub fn guidance(logits: Tensor, other: Tensor, scale: impl Into<Value>) -> Tensor {
    let without = other.log_softmax();
    without + (logits.log_softmax() - without) * scale
}

/// What a weaker model finds unlikely, of tokens with a share of the likeliest's probability, such as
/// 0.1 (Li et al. 2023).
#[track_caller]
pub fn contrastive(logits: Tensor, other: Tensor, share: impl Into<Value>) -> Tensor {
    min_p(logits, share) - other.log_softmax()
}

/// What a document makes likelier than the same text without it says (Shi et al. 2024).
#[track_caller]
pub fn context_aware(logits: Tensor, other: Tensor, alpha: impl Into<Value>) -> Tensor {
    let alpha = alpha.into();
    let more = match alpha {
        Value::Float(number) => Value::Float(number + 1.0),
        Value::Int(number) => Value::Int(number + 1),
        alpha => Value::Tensor(logits.like(alpha) + 1.0),
    };
    logits * more - other * alpha
}

// Programs

/// Top-p at a temperature: given `temperature` and `p`.
#[track_caller]
pub fn tempered(logits: Tensor, state: &mut State) -> Tensor {
    draw(top_p(cooled(logits, state.get("temperature")), state.get("p")))
}

/// Keeps the surprise at `tau` bits (Basu et al. 2021, version 2): given `mu`, which begins at twice
/// `tau`, `tau`, and `rate`, such as 0.1.
#[track_caller]
pub fn mirostat(logits: Tensor, state: &mut State) -> Tensor {
    let surprise = -logits.log_softmax() / LN_2;
    let kept = surprise.le(state.get("mu")) | logits.ge(logits.max());
    let chosen = draw(logits.where_(kept, NEVER));
    let error = surprise.at(chosen) - state.get("tau");
    state.set("mu", state.get("mu") - state.get("rate") * error);
    chosen
}

/// A lower temperature where the model is sure (Zhang et al., EDT, 2024): given `temperature` and
/// `theta`, it is `temperature * 0.8 ** (theta / entropy)`.
#[track_caller]
pub fn entropy_temperature(logits: Tensor, state: &mut State) -> Tensor {
    let (_, entropy) = entropy_of(logits);
    let power = ((state.get("theta") / entropy) * 0.8_f64.ln()).exp();
    let scaled = state.get("temperature") * power;
    where_(scaled.gt(1e-6), draw(logits / scaled), logits.argmax())
}

/// Draws by a key and the newest tokens, not by chance (Aaronson and Kirchner 2022): given
/// `temperature`, and `key`, an int. The text is as likely as any, and who has the key recognizes it.
#[track_caller]
pub fn gumbel_watermark(logits: Tensor, state: &mut State) -> Tensor {
    let words = hash(hashed_text(state.get("key"), 3), iota(VOCABULARY)) >> 40;
    let share = ((words & 0xFFFFFF).to_float() + 0.5) * (1.0 / 16_777_216.0);
    (cooled(logits, state.get("temperature")) - (-share.log()).log()).argmax()
}

/// A tournament in 30 rounds by bits of a keyed hash (Dathathri et al., SynthID-Text, 2024): given
/// `temperature`, and `key`, an int.
#[track_caller]
pub fn synthid(logits: Tensor, state: &mut State) -> Tensor {
    let words = hash(hashed_text(state.get("key"), 4), iota(VOCABULARY));
    let mut chances = cooled(logits, state.get("temperature")).softmax();
    for round in 0..30 {
        let bits = ((words >> round) & 1).to_float();
        chances = chances * (bits + 1.0 - (chances * bits).sum());
    }
    draw(chances.log())
}

/// The logits at a temperature; at 0 only the likeliest is left.
#[track_caller]
fn cooled(logits: Tensor, temperature: Tensor) -> Tensor {
    let kept = temperature.gt(1e-6) | iota(VOCABULARY).eq(logits.argmax());
    (logits / maximum(temperature, 1e-6)).where_(kept, NEVER)
}

/// A hash of a key and the newest tokens, int.
#[track_caller]
fn hashed_text(key: Tensor, count: i64) -> Tensor {
    newest(count).iter().fold(key, |key, token| hash(key, token))
}

/// The logits at places that are kept; the rest is ruled out.
#[track_caller]
fn only(logits: Tensor, places: Tensor, kept: impl Into<Value>) -> Tensor {
    logits.where_(nothing().scatter_max(places, kept), NEVER)
}

/// False for each token.
#[track_caller]
fn nothing() -> Tensor {
    iota(VOCABULARY).lt(0)
}

/// What is at least as likely as a bar, and in any case the likeliest.
#[track_caller]
fn likely(logits: Tensor, chances: Tensor, bar: impl Into<Value>) -> Tensor {
    logits.where_(chances.ge(bar) | logits.ge(logits.max()), NEVER)
}

/// Log-probabilities, and the entropy in nats.
#[track_caller]
fn entropy_of(logits: Tensor) -> (Tensor, Tensor) {
    let logs = logits.log_softmax();
    let parts = logs.exp() * logs;
    (logs, -parts.where_(!parts.is_nan(), 0.0).sum())
}

/// The newest tokens `[look_back]`, and how many before each, `most` at most, are the text's last
/// ones. A repetition ends at the breakers.
#[track_caller]
fn repeated(most: i64, look_back: i64, breakers: Option<Tensor>) -> (Tensor, Tensor) {
    let text = newest(look_back + most);
    let tokens = text.slice(most, None);
    let mut closed = text.lt(0);
    if let Some(breakers) = breakers {
        closed = closed | nothing().scatter_max(breakers, true).at(text);
    }
    if most == 0 {
        return (tokens, iota(look_back) * 0);
    }
    // The tokens before each, the nearest first: `[look_back, most]`.
    let places = iota(look_back).reshape(&[look_back, 1]) - iota(most) + most - 1;
    let before = where_(closed, -2, text).at(places);
    let differs = !before.eq(text.flip().slice(0, most));
    let lengths = where_(differs.any(), differs.to_int().argmax(), most);
    let lengths = where_(closed.slice(most, None), 0, lengths);
    (tokens, lengths)
}
