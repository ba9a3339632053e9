/**
 * Rules for choosing tokens, each a short function for device programs, and ready-made programs.
 *
 * A filter takes logits `[vocabulary]` and returns others; minus infinity rules a token out. Filters
 * are put together in a program of one's own:
 *
 *     const mine = device.program((logits, state) => {
 *       const penalized = samplers.repetitionPenalty(logits, 1.2);
 *       return device.draw(samplers.topP(penalized.div(state.temperature), 0.9));
 *     });
 *     context.generate(mine({ temperature: 0.7 }));
 *
 * Numbers may be JavaScript's, which make another program for each value, or of the state.
 */

import {
  counts,
  draw,
  given,
  hash,
  int,
  iota,
  like,
  maximum,
  minimum,
  newest,
  nucleus,
  program,
  step,
  Tensor,
  uniform,
  type WholeNumber,
  where,
} from "./device_program.ts";

type Amount = Tensor | number;
const NEVER = -Infinity;

// What rules tokens out by how likely they are

/** The `k` most likely tokens. */
export function topK(logits: Tensor, k: Amount): Tensor {
  if (typeof k === "number") return only(logits, logits.top(k), true);
  return only(logits, logits.descending(), iota().lt(k));
}

/** The fewest likely tokens that reach a mass. */
export function topP(logits: Tensor, p: Amount): Tensor {
  return logits.where(nucleus(logits, p), NEVER);
}

/** Tokens that are at least `p` times as likely as the likeliest. */
export function minP(logits: Tensor, p: Amount): Tensor {
  const bar = typeof p === "number" ? Math.log(p) : p.log();
  return logits.where(logits.sub(logits.max()).ge(bar), NEVER);
}

/** Tokens at least as likely as `a` times the square of the likeliest one's probability. */
export function topA(logits: Tensor, a: Amount): Tensor {
  const chances = logits.softmax();
  const best = chances.max();
  return likely(logits, chances, like(best, a).mul(best).mul(best));
}

/** Tokens with a probability of at least `epsilon`; and in any case the likeliest. */
export function epsilonCutoff(logits: Tensor, epsilon: Amount): Tensor {
  return likely(logits, logits.softmax(), epsilon);
}

/** As `epsilonCutoff`, less where the model is unsure (Hewitt et al. 2022). */
export function etaCutoff(logits: Tensor, epsilon: Amount): Tensor {
  const { logs, entropy } = entropyOf(logits);
  const root = typeof epsilon === "number" ? Math.sqrt(epsilon) : epsilon.sqrt();
  const bar = entropy.neg().exp().mul(root);
  return likely(logits, logs.exp(), minimum(bar, epsilon));
}

/** Tokens whose surprise is nearest to the expected, of a mass (Meister et al. 2022). */
export function typicalP(logits: Tensor, p: Amount): Tensor {
  const { logs, entropy } = entropyOf(logits);
  const distance = logs.neg().sub(entropy).abs();
  const order = distance.argsort();
  const short = logs.exp().at(order).cumsum().lt(p);
  const last = minimum(short.toInt().sum(), iota().max());
  return logits.where(distance.le(distance.at(order.at(last))), NEVER);
}

/** The most likely of `count` tokens, up to where their curve is flat (Phénix and Egan 2019). */
export function tailFree(logits: Tensor, z: Amount, count = 256): Tensor {
  const order = logits.top(count);
  const chances = logits.softmax().at(order);
  const slopes = chances.slice(0, -1).sub(chances.slice(1));
  const bends = slopes.slice(0, -1).sub(slopes.slice(1)).abs();
  const weight = bends.div(bends.sum()).cumsum();
  // The first one stays, and each whose bends before it have not reached z.
  const kept = weight.le(z).or(iota(count - 2).eq(0));
  return only(logits, order.slice(0, count - 2), kept);
}

/** Sometimes without all likely tokens but the least likely of them. */
export function xtc(logits: Tensor, threshold: Amount, probability: Amount): Tensor {
  const chances = logits.softmax();
  const above = chances.ge(threshold).and(chances.gt(0));
  // From the end: of equal ones the last.
  const least = logits.neg().where(above, NEVER).flip().argmax();
  const out = above.and(iota().ne(iota().max().sub(least))).and(uniform().lt(probability));
  return logits.where(out.not(), NEVER);
}

// What looks at the text

/** Of a token that occurs, a logit above 0 is divided, one below multiplied (CTRL, 2019). */
export function repetitionPenalty(logits: Tensor, factor: Amount): Tensor {
  const less = where(logits.gt(0), logits.div(factor), logits.mul(factor));
  return less.where(counts().gt(0).or(given()), logits);
}

/** Taken off tokens that were generated, once. */
export function presencePenalty(logits: Tensor, penalty: Amount): Tensor {
  return logits.sub(counts().gt(0).toFloat().mul(penalty));
}

/** Taken off tokens that were generated, each time. */
export function frequencyPenalty(logits: Tensor, penalty: Amount): Tensor {
  return logits.sub(counts().toFloat().mul(penalty));
}

/** No sequence of `size` tokens comes twice. */
export function noRepeatNgram(logits: Tensor, size: number, lookBack = 1024): Tensor {
  const { tokens, lengths } = repeated(size - 1, lookBack);
  const banned = lengths.ge(size - 1).and(tokens.ge(0));
  return logits.where(nothing().scatterMax(tokens, banned).not(), NEVER);
}

/** None of some sequences of tokens comes as a whole: what `padded` makes of them, of the state. */
export function bannedSequences(logits: Tensor, sequences: Tensor): Tensor {
  const size = sequences.shape[1];
  const last = sequences.transpose().at(size - 1);
  let follows = last.ge(0);
  if (size > 1) {
    const before = sequences.slice(0, size - 1);
    follows = follows.and(before.eq(newest(size - 1)).or(before.lt(0)).all());
  }
  return logits.where(nothing().scatterMax(last, follows).not(), NEVER);
}

/** Sequences of tokens as lists of one length, with -1 before the shorter ones. */
export function padded(sequences: readonly (readonly number[])[]): WholeNumber[][] {
  const size = Math.max(...sequences.map((one) => one.length));
  return sequences.map((one) => int([...Array<number>(size - one.length).fill(-1), ...one]));
}

/**
 * Less likely what goes on with a repetition of n tokens, by `multiplier * base ** (n - allowed)`.
 * A repetition ends at the breakers: a list, of the state.
 */
export function dry(
  logits: Tensor,
  multiplier: Amount,
  base: Amount = 1.75,
  allowed: Amount = 2,
  breakers?: Tensor,
  lookBack = 1024,
): Tensor {
  const { tokens, lengths } = repeated(64, lookBack, breakers);
  const excess = lengths.sub(allowed).toFloat();
  const power = like(excess, base).pow(excess).mul(multiplier);
  const penalty = where(lengths.ge(allowed).and(lengths.gt(0)), power, 0);
  return logits.sub(iota().mul(0).toFloat().scatterMax(tokens, penalty));
}

/**
 * Likelier what a hash of the token before favours (Kirchenbauer et al. 2023). `watermark`
 * recognizes the text.
 */
export function watermark(logits: Tensor, bias: Amount, share = 0.5, key = 0): Tensor {
  const before = newest(1).at(0);
  const first = hash(like(before, key).add(before.mul(0)), before);
  const drawn = hash(first, iota()).shr(40).and(0xffffff);
  const green = drawn.toFloat().lt(share * 2 ** 24).and(before.ge(0));
  return logits.add(green.toFloat().mul(bias));
}

// What is asked for by token

/** Values added to tokens' logits: lists of the same length, of the state. */
export function logitBias(logits: Tensor, tokens: Tensor, values: Tensor): Tensor {
  return logits.scatterAdd(tokens, values);
}

/** None but some tokens: a list, of the state. */
export function allowedTokens(logits: Tensor, tokens: Tensor): Tensor {
  return only(logits, tokens, true);
}

/** Not one of the tokens that end the text before `count` were chosen. */
export function minTokens(logits: Tensor, count: Amount, ends: Tensor): Tensor {
  const early = step().lt(count).and(nothing().scatterMax(ends, true));
  return logits.where(early.not(), NEVER);
}

/** Token healing: the first token is one of some, those that begin with what was cut off. */
export function healed(logits: Tensor, tokens: Tensor): Tensor {
  return where(step().eq(0), allowedTokens(logits, tokens), logits);
}

// What a context beside says as well: `device.beside(0)`

/** So many times as far from a text without the prompt (Sanchez et al. 2023). */
export function guidance(logits: Tensor, other: Tensor, scale: Amount): Tensor {
  const without = other.logSoftmax();
  return without.add(logits.logSoftmax().sub(without).mul(scale));
}

/**
 * What a weaker model finds unlikely, of tokens with a share of the likeliest's probability (Li et al.
 * 2023).
 */
export function contrastive(logits: Tensor, other: Tensor, share: Amount = 0.1): Tensor {
  return minP(logits, share).sub(other.logSoftmax());
}

/** What a document makes likelier than the same text without it says (Shi et al. 2024). */
export function contextAware(logits: Tensor, other: Tensor, alpha: Amount): Tensor {
  const more = typeof alpha === "number" ? alpha + 1 : alpha.add(1);
  return logits.mul(more).sub(other.mul(alpha));
}

// Programs

/** Top-p at a temperature: `tempered({ temperature: 0.7, p: 0.9 })`. */
export const tempered = program((logits, state) => draw(topP(cooled(logits, state.temperature), state.p)));

/**
 * Keeps the surprise at `tau` bits (Basu et al. 2021, version 2).
 *
 * `mirostat({ mu: 10, tau: 5, rate: 0.1 })`; mu begins at twice tau.
 */
export const mirostat = program((logits, state) => {
  const surprise = logits.logSoftmax().neg().div(Math.LN2);
  const kept = surprise.le(state.mu).or(logits.ge(logits.max()));
  const chosen = draw(logits.where(kept, NEVER));
  state.mu = state.mu.sub(state.rate.mul(surprise.at(chosen).sub(state.tau)));
  return chosen;
});

/**
 * A lower temperature where the model is sure (Zhang et al., EDT, 2024).
 *
 * `entropyTemperature({ temperature: 1, theta: 1 })`: `temperature * 0.8 ** (theta / entropy)`.
 */
export const entropyTemperature = program((logits, state) => {
  const power = state.theta.div(entropyOf(logits).entropy).mul(Math.log(0.8)).exp();
  const scaled = state.temperature.mul(power);
  return where(scaled.gt(1e-6), draw(logits.div(scaled)), logits.argmax());
});

/**
 * Draws by a key and the newest tokens, not by chance (Aaronson and Kirchner 2022).
 *
 * `gumbelWatermark({ temperature: 1, key: 42n })`. The text is as likely as any, and who has the key
 * recognizes it: `watermark.gumbelScore`.
 */
export const gumbelWatermark = program((logits, state) => {
  const words = hash(hashedText(state.key, 3), iota()).shr(40);
  const share = words.and(0xffffff).toFloat().add(0.5).mul(2 ** -24);
  return cooled(logits, state.temperature).sub(share.log().neg().log()).argmax();
});

/**
 * A tournament in 30 rounds by bits of a keyed hash (Dathathri et al., SynthID-Text, 2024).
 *
 * `synthid({ temperature: 1, key: 42n })`. `watermark.synthidScore` recognizes the text.
 */
export const synthid = program((logits, state) => {
  const words = hash(hashedText(state.key, 4), iota());
  let chances = cooled(logits, state.temperature).softmax();
  for (let i = 0; i < 30; i++) {
    const bits = words.shr(i).and(1).toFloat();
    chances = chances.mul(bits.add(1).sub(chances.mul(bits).sum()));
  }
  return draw(chances.log());
});

/** The logits at a temperature; at 0 only the likeliest is left. */
function cooled(logits: Tensor, temperature: Tensor): Tensor {
  const kept = temperature.gt(1e-6).or(iota().eq(logits.argmax()));
  return logits.div(maximum(temperature, 1e-6)).where(kept, NEVER);
}

/** A hash of a key and the newest tokens, int. */
function hashedText(key: Tensor, count: number): Tensor {
  const text = newest(count);
  let found = key;
  for (let i = 0; i < count; i++) found = hash(found, text.at(i));
  return found;
}

/** The logits at places that are kept; the rest is ruled out. */
function only(logits: Tensor, places: Tensor, kept: Tensor | boolean): Tensor {
  return logits.where(nothing().scatterMax(places, kept), NEVER);
}

/** False for each token. */
function nothing(): Tensor {
  return iota().lt(0);
}

/** What is at least as likely as a bar, and in any case the likeliest. */
function likely(logits: Tensor, chances: Tensor, bar: Amount): Tensor {
  return logits.where(chances.ge(bar).or(logits.ge(logits.max())), NEVER);
}

/** Log-probabilities, and the entropy in nats. */
function entropyOf(logits: Tensor): { logs: Tensor; entropy: Tensor } {
  const logs = logits.logSoftmax();
  const parts = logs.exp().mul(logs);
  return { logs, entropy: parts.where(parts.isNan().not(), 0).sum().neg() };
}

/**
 * The newest tokens `[lookBack]`, and how many before each, `most` at most, are the text's last
 * ones. A repetition ends at the breakers.
 */
function repeated(
  most: number,
  lookBack: number,
  breakers?: Tensor,
): { tokens: Tensor; lengths: Tensor } {
  const text = newest(lookBack + most);
  const tokens = text.slice(most);
  let closed = text.lt(0);
  if (breakers) closed = closed.or(nothing().scatterMax(breakers, true).at(text));
  if (most === 0) return { tokens, lengths: iota(lookBack).mul(0) };
  // The tokens before each, the nearest first: `[lookBack, most]`.
  const places = iota(lookBack).reshape(lookBack, 1).sub(iota(most)).add(most).sub(1);
  const before = where(closed, -2, text).at(places);
  const differs = before.eq(text.flip().slice(0, most)).not();
  const some = where(differs.any(), differs.toInt().argmax(), most);
  return { tokens, lengths: where(closed.slice(most), 0, some) };
}
