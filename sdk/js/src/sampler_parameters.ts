// Generated from pie_py/wire/operations.py by `python -m pie_py.build.generate`; do not edit.

/** Parameters of the steps of a `DeviceSampler`, in their order. */
export interface SamplerParameters {
  /** Share of the most likely token's own probability that a token needs. */
  plausibility?: number;
  /** Weights of the own logits, and of those of `mix-logits`: guidance is [s, 1 - s], contrastive decoding [1, -1]. */
  mix?: number[];
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
  /** Lists of token ids, 64 at most in each, that do not come as a whole. */
  bannedSequences?: number[][];
  /** So many tokens are chosen before `end_tokens`. */
  minTokens?: number;
  /** Token ids that end the text. */
  endTokens?: number[];
  /** `multiplier * base ** (n - allowed_length)` is taken off a token that goes on with a repetition of n tokens, 64 at most. */
  dryMultiplier?: number;
  /** The base of this power. */
  dryBase?: number;
  /** Tokens that may be repeated. */
  dryAllowedLength?: number;
  /** Token ids at which a repetition ends. */
  drySequenceBreakers?: number[];
  /** Added to the tokens that a SplitMix64 hash of the key and the token before favours. */
  watermarkBias?: number;
  /** Share of the tokens that the hash favours. */
  watermarkShare?: number;
  /** Of the hash, below 2^48. */
  watermarkKey?: number;
  /** Divides the logits; 0 takes the most likely token of what is left, and ends the steps. */
  temperature?: number;
  /** So many of the most likely tokens; 0 is all. */
  topK?: number;
  /** The fewest likely tokens that reach this mass. */
  topP?: number;
  /** Share of the most likely token's probability that a token needs. */
  minP?: number;
  /** Mass of the tokens whose surprise is nearest to the expected (Meister et al. 2022). */
  typicalP?: number;
  /** Probability that a token needs. */
  epsilonCutoff?: number;
  /** The same, lower where the model is unsure (Hewitt et al. 2022). */
  etaCutoff?: number;
  /** Probability from which on a token is likely to XTC. */
  xtcThreshold?: number;
  /** How often XTC rules out all likely tokens but the least likely of them. */
  xtcProbability?: number;
}

/** Those that need the tokens of the context counted, with the values that change nothing. */
export const COUNTING: SamplerParameters = { repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0 };

/** Those that look back at the tokens of the context. */
export const LOOKING_BACK: SamplerParameters = { noRepeatNgramSize: 0, bannedSequences: [], dryMultiplier: 0, watermarkBias: 0 };
