/** Choice by the server, where the model runs: it sends the token, not a distribution. */

import {
  draw,
  type Given,
  int,
  program,
  type ProgramSampler,
  type State,
  type Tensor,
  where,
} from "./device_program.ts";
import * as samplers from "./samplers.ts";

const LOOK_BACK = 4096; // tokens: as many as the server remembers
const SORTED = 256; // of top-k: beyond this all tokens are sorted

/**
 * Parameters of `DeviceSampler`. The steps go in this order, that of `transformers`; each looks at
 * what those before have left. A grammar or mask comes before them. Temperature, top-k, top-p and
 * min-p are built into the server; any other step makes a device program of `samplers`, where another
 * order, and further rules, are a function of one's own.
 */
export interface SamplerOptions {
  /** Token ids to what is added to their logits; null rules a token out. */
  logitBias?: Record<number, number | null>;
  /** Token ids; all others are ruled out. */
  allowedTokens?: number[];
  /** Of tokens given and generated, a logit above 0 is divided by it, one below multiplied. */
  repetitionPenalty?: number;
  /** Taken off tokens generated, once. */
  presencePenalty?: number;
  /** Taken off tokens generated, each time. */
  frequencyPenalty?: number;
  /** No sequence of so many tokens comes twice. */
  noRepeatNgramSize?: number;
  /** Lists of token ids that do not come as a whole. */
  bannedSequences?: number[][];
  /** So many tokens are chosen before `endTokens`. */
  minTokens?: number;
  /** Token ids that end the text. */
  endTokens?: number[];
  /** `multiplier * base ** (n - allowedLength)` is taken off a token that goes on with a repetition of
   * n tokens, 64 at most, among the newest 1 024. */
  dryMultiplier?: number;
  /** The base of this power. */
  dryBase?: number;
  /** Tokens that may be repeated. */
  dryAllowedLength?: number;
  /** Token ids at which a repetition ends. */
  drySequenceBreakers?: number[];
  /** Divides the logits; 0 takes the most likely token of what is left, and ends the steps. */
  temperature?: number;
  /** So many of the most likely tokens; 0 is all. */
  topK?: number;
  /** The fewest likely tokens that reach this mass. */
  topP?: number;
  /** Share of the most likely token's probability that a token needs. */
  minP?: number;
  /** Mass of the tokens whose surprise is nearest to the expected. */
  typicalP?: number;
  /** Probability that a token needs. */
  epsilonCutoff?: number;
  /** The same, lower where the model is unsure. */
  etaCutoff?: number;
  /** Probability from which on a token is likely to XTC. */
  xtcThreshold?: number;
  /** How often XTC rules out all likely tokens but the least likely of them. */
  xtcProbability?: number;
  /** How many of the most likely tokens each step returns as well. */
  logprobs?: number;
  /** Same seed (modulo 2^64), same tokens; without one the server draws it. */
  seed?: number | bigint;
}

/** A step, and the state that it reads: what is of the state makes no other program. */
interface Step {
  given: Record<string, Given>;
  of: (logits: Tensor, state: State) => Tensor;
}

/** Of numbers, which end far from where float32 loses its grip. */
const RANGES: [keyof SamplerOptions, number, number][] = [
  ["repetitionPenalty", 1e-9, 1e4],
  ["presencePenalty", -1e4, 1e4],
  ["frequencyPenalty", -1e4, 1e4],
  ["noRepeatNgramSize", 0, 64],
  ["minTokens", 0, 2 ** 24],
  ["dryMultiplier", 0, 1e4],
  ["dryBase", 1, 100],
  ["dryAllowedLength", 0, 64],
  ["temperature", 0, 1e4],
  ["topK", 0, 2 ** 31 - 1],
  ["topP", 0, 1],
  ["minP", 0, 1],
  ["typicalP", 0, 1],
  ["epsilonCutoff", 0, 1],
  ["etaCutoff", 0, 1],
  ["xtcThreshold", 0, 1],
  ["xtcProbability", 0, 1],
];

/** How the server chooses a token, among the whole vocabulary. */
export class DeviceSampler {
  readonly looksBack = false; // of what the server has built in
  readonly beside = 0;

  /**
   * Takes the steps' numbers.
   *
   * @throws RangeError if one is outside its range, or `allowedTokens` is empty: a program would
   * compute with whatever it is given, and the server sees numbers only.
   */
  constructor(readonly options: SamplerOptions = {}) {
    for (const [name, least, most] of RANGES) {
      const value = options[name] as number | undefined;
      if (value !== undefined && !(value >= least && value <= most)) {
        throw new RangeError(`${name} is ${value}; it is ${least} to ${most}`);
      }
    }
    for (const [token, bias] of Object.entries(options.logitBias ?? {})) {
      if (bias !== null && bias !== -Infinity && !(Math.abs(bias) <= 1e4)) {
        throw new RangeError(`logitBias of token ${token} is ${bias}; it is -10000 to 10000, or null`);
      }
    }
    if (options.allowedTokens?.length === 0) {
      throw new RangeError("allowedTokens is empty: it would rule out every token");
    }
  }

  /** The same sampler with another seed. */
  seeded(seed: number | bigint | undefined): DeviceSampler {
    return new DeviceSampler({ ...this.options, seed });
  }

  /** Whether it has a penalty, and so counts the tokens of the context. */
  get counts(): boolean {
    const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = this.options;
    return repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
  }

  /** Itself if the server has all of it built in, else the device program that it stands for. */
  resolved(): DeviceSampler | ProgramSampler {
    const { temperature, seed, logprobs } = this.options;
    const draws = temperature !== 0;
    const before = stepsBefore(this.options);
    const behind = draws ? stepsBehind(this.options) : [];
    if (!before.length && !behind.length) return this;
    const steps = [...before, ...(draws ? stepsBuiltIn(this.options) : []), ...behind];
    const rule = program((logits, state) => {
      const left = steps.reduce((found, step) => step.of(found, state), logits);
      const token = draws ? draw(left) : left.argmax();
      return where(left.max().gt(-Infinity), token, -1); // none, if all are ruled out
    });
    const given = Object.assign({}, ...steps.map((step) => step.given)) as Record<string, Given>;
    return rule(given, { seed, logprobs });
  }

  /** The parameters, as `raw.createSampler` takes them. */
  toJSON(): string {
    const found = this.resolved();
    if (found !== this) return found.toJSON();
    const { temperature, topK, topP, minP, logprobs, seed } = this.options;
    const text = JSON.stringify({ temperature, top_k: topK, top_p: topP, min_p: minP, logprobs });
    if (seed === undefined) return text;
    const number = BigInt.asUintN(64, BigInt(seed)); // more digits than JSON.stringify keeps
    return text === "{}" ? `{"seed": ${number}}` : `${text.slice(0, -1)}, "seed": ${number}}`;
  }
}

/** What comes before the temperature. */
function stepsBefore(options: SamplerOptions): Step[] {
  const { logitBias = {}, allowedTokens, bannedSequences = [], endTokens = [] } = options;
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = options;
  const { noRepeatNgramSize = 0, minTokens = 0, dryMultiplier = 0, dryBase = 1.75 } = options;
  const { dryAllowedLength = 2, drySequenceBreakers = [] } = options;
  const found: Step[] = [];
  const add = (given: Record<string, Given>, of: Step["of"]) => found.push({ given, of });
  const biases = Object.entries(logitBias);
  if (biases.length) {
    const values = biases.map(([, bias]) => bias ?? -Infinity);
    add({ logit_bias: int(biases.map(([token]) => Number(token))), biases: values }, (x, s) =>
      samplers.logitBias(x, s.logit_bias, s.biases),
    );
  }
  if (allowedTokens !== undefined) {
    add({ allowed_tokens: int(allowedTokens) }, (x, s) => samplers.allowedTokens(x, s.allowed_tokens));
  }
  if (repetitionPenalty !== 1) {
    add({ repetition: repetitionPenalty }, (x, s) => samplers.repetitionPenalty(x, s.repetition));
  }
  if (presencePenalty) add({ presence: presencePenalty }, (x, s) => samplers.presencePenalty(x, s.presence));
  if (frequencyPenalty) {
    add({ frequency: frequencyPenalty }, (x, s) => samplers.frequencyPenalty(x, s.frequency));
  }
  if (noRepeatNgramSize) {
    const back = LOOK_BACK - noRepeatNgramSize + 1;
    add({}, (x) => samplers.noRepeatNgram(x, noRepeatNgramSize, back));
  }
  if (bannedSequences.length) {
    add({ banned_sequences: samplers.padded(bannedSequences) }, (x, s) =>
      samplers.bannedSequences(x, s.banned_sequences),
    );
  }
  if (minTokens && endTokens.length) {
    add({ least: int(minTokens), end_tokens: int(endTokens) }, (x, s) =>
      samplers.minTokens(x, s.least, s.end_tokens),
    );
  }
  if (dryMultiplier) {
    const given: Record<string, Given> = { multiplier: dryMultiplier, base: dryBase, free: int(dryAllowedLength) };
    const breaks = drySequenceBreakers.length > 0;
    if (breaks) given.dry_sequence_breakers = int(drySequenceBreakers);
    add(given, (x, s) => samplers.dry(x, s.multiplier, s.base, s.free, breaks ? s.dry_sequence_breakers : undefined));
  }
  return found;
}

/** What the server does without a program as well. */
function stepsBuiltIn({ temperature = 1, topK = 0, topP = 1, minP = 0 }: SamplerOptions): Step[] {
  const found: Step[] = [];
  if (temperature !== 1) found.push({ given: { temperature }, of: (x, s) => x.div(s.temperature) });
  if (topK > SORTED) found.push({ given: { k: int(topK) }, of: (x, s) => samplers.topK(x, s.k) });
  else if (topK) found.push({ given: {}, of: (x) => samplers.topK(x, topK) });
  if (topP < 1) found.push({ given: { p: topP }, of: (x, s) => samplers.topP(x, s.p) });
  if (minP) found.push({ given: { least_p: minP }, of: (x, s) => samplers.minP(x, s.least_p) });
  return found;
}

/** What comes behind it. */
function stepsBehind(options: SamplerOptions): Step[] {
  const { typicalP = 1, epsilonCutoff = 0, etaCutoff = 0 } = options;
  const { xtcThreshold = 0.1, xtcProbability = 0 } = options;
  const found: Step[] = [];
  const add = (given: Record<string, Given>, of: Step["of"]) => found.push({ given, of });
  if (typicalP < 1) add({ typical: typicalP }, (x, s) => samplers.typicalP(x, s.typical));
  if (epsilonCutoff) add({ epsilon: epsilonCutoff }, (x, s) => samplers.epsilonCutoff(x, s.epsilon));
  if (etaCutoff) add({ eta: etaCutoff }, (x, s) => samplers.etaCutoff(x, s.eta));
  if (xtcProbability) {
    add({ threshold: xtcThreshold, chance: xtcProbability }, (x, s) => samplers.xtc(x, s.threshold, s.chance));
  }
  return found;
}
