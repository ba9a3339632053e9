// Generated from pie_py/device_programs/fields.py by `python -m codegen`; do not edit.

/**
 * How the server chooses a token, among the whole vocabulary.
 *
 * The steps go in the order of the parameters, that of `transformers`; each looks at what those
 * before have left. A grammar or mask comes before them.
 */
export interface SamplerParameters {
  /** Token ids to what is added to their logits; null rules a token out. */
  logitBias?: Record<number, number | null>;
  /** Token ids; all others are ruled out. */
  allowedTokens?: readonly number[];
  /** Of tokens given and generated, a logit above 0 is divided by it, one below multiplied. */
  repetitionPenalty?: number;
  /** Taken off tokens generated, once. */
  presencePenalty?: number;
  /** Taken off tokens generated, each time. */
  frequencyPenalty?: number;
  /** No sequence of so many tokens comes twice. */
  noRepeatNgramSize?: number;
  /** Lists of token ids that do not come as a whole. */
  bannedSequences?: readonly (readonly number[])[];
  /** So many tokens are chosen before `endTokens`. */
  minTokens?: number;
  /** Token ids that end the text. */
  endTokens?: readonly number[];
  /** `multiplier * base ** (n - allowedLength)` is taken off a token that goes on with a repetition
   * of n tokens, 64 at most, among the newest 1 024. */
  dryMultiplier?: number;
  /** The base of this power. */
  dryBase?: number;
  /** Tokens that may be repeated. */
  dryAllowedLength?: number;
  /** Token ids at which a repetition ends. */
  drySequenceBreakers?: readonly number[];
  /** Divides the logits; 0 takes the most likely token of what is left, and ends the steps. */
  temperature?: number;
  /** So many of the most likely tokens; 0 is all. */
  topK?: number;
  /** The fewest likely tokens that reach this mass. */
  topP?: number;
  /** Share of the most likely token's probability that a token needs. */
  minP?: number;
  /** Tokens whose logit is within so many standard deviations of the largest. */
  topNSigma?: number;
  /** Mass of the tokens whose surprise is nearest to the expected. */
  typicalP?: number;
  /** Probability that a token needs. */
  epsilonCutoff?: number;
  /** The same, lower where the model is unsure. */
  etaCutoff?: number;
  /** How often XTC rules out all likely tokens but the least likely of them. */
  xtcProbability?: number;
  /** Probability from which on a token is likely to XTC. */
  xtcThreshold?: number;
  /** Number of most likely tokens that each step reports as well. */
  logprobs?: number;
  /** Same seed (modulo 2^64), same tokens; without one the server draws it. */
  seed?: number | bigint;
}
