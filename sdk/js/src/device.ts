/** How the server chooses a token, where the model runs: it sends the token, not a distribution. */

/** Parameters of `DeviceSampler`; `create-sampler` of the contract says what each of them does. */
export interface SamplerOptions {
  /** Weights: of the own logits, and of those of `generate`'s `beside`. */
  mix?: number[];
  plausibility?: number;
  /** By token; null rules a token out. */
  logitBias?: Record<number, number | null>;
  allowedTokens?: number[];
  /** Of tokens in the prompt and generated. */
  repetitionPenalty?: number;
  /** Of generated tokens, once. */
  presencePenalty?: number;
  /** Of generated tokens, each time. */
  frequencyPenalty?: number;
  /** No sequence of so many tokens comes twice. */
  noRepeatNgramSize?: number;
  dryMultiplier?: number;
  dryBase?: number;
  dryAllowedLength?: number;
  drySequenceBreakers?: number[];
  watermarkBias?: number;
  watermarkShare?: number;
  watermarkKey?: number;
  /** 0 takes the most likely token. */
  temperature?: number;
  /** 0 is all. */
  topK?: number;
  topP?: number;
  /** Share of the most likely token's probability that a token must have. */
  minP?: number;
  typicalP?: number;
  epsilonCutoff?: number;
  etaCutoff?: number;
  xtcProbability?: number;
  xtcThreshold?: number;
  /** Of the steps, by the contract's names. */
  order?: string[];
  /** How many of the most likely tokens each step returns as well. */
  logprobs?: number;
  /** Same seed (modulo 2^64), same tokens; without one the server draws it. */
  seed?: number | bigint;
}

/** How the server chooses a token, among the whole vocabulary. */
export class DeviceSampler {
  constructor(readonly options: SamplerOptions = {}) {}

  /** The same sampler with another seed. */
  seeded(seed: number | bigint | undefined): DeviceSampler {
    return new DeviceSampler({ ...this.options, seed });
  }

  /** Whether it has a penalty, and so counts the tokens of the context. */
  get counts(): boolean {
    const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = this.options;
    return repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
  }

  /** Whether it has to be told of the tokens of the context. */
  get looksBack(): boolean {
    const { noRepeatNgramSize, dryMultiplier, watermarkBias } = this.options;
    return this.counts || Boolean(noRepeatNgramSize || dryMultiplier || watermarkBias);
  }

  /** The parameters, as `raw.createSampler` takes them. */
  toJSON(): string {
    const { seed, ...others } = this.options;
    const named = Object.entries(others)
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => [snake(name), value]);
    const text = JSON.stringify(Object.fromEntries(named));
    if (seed === undefined) return text;
    const number = BigInt.asUintN(64, BigInt(seed)); // more digits than JSON.stringify keeps
    return named.length ? `${text.slice(0, -1)}, "seed": ${number}}` : `{"seed": ${number}}`;
  }
}

function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
