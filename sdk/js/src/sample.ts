/** Samplers, which say how the server chooses tokens, and distributions. */

import { object, plainJson, seedJson } from "./device.ts";
import type { SamplerParameters } from "./sampler_parameters.ts";

/** Most likely tokens of a distribution, by default. */
export const DISTRIBUTION_SIZE = 256;
type Seed = number | bigint;

/**
 * How the server chooses a token, among the whole vocabulary: parameters by name, as in
 * `new Sampler({ temperature: 0.6, repetitionPenalty: 1.2 })`, or a static method, as in
 * `Sampler.topP(0.6, 0.95)`, which takes others in an object at the end.
 *
 * A temperature of 0 takes the most likely token. The same seed gives the same text, however it is read.
 * `SamplerParameters` has the parameters, in the order in which they act; the server checks names and
 * values, when the first token is asked for. A rule of your own is a device program, or
 * chooses of `step.distribution()`, for `accept`.
 */
export class Sampler {
  /** Of the parameters that are not given each does nothing, but that the temperature is 1. */
  constructor(readonly parameters: SamplerParameters = {}) {
    if (new.target !== Sampler) {
      throw new TypeError(
        "Sampler has no subclasses: choose by `step.distribution` and `accept`, or write a `device.program`",
      );
    }
  }

  /** Always the most likely token. */
  static argmax(more: SamplerParameters = {}): Sampler {
    return new Sampler({ temperature: 0, ...more });
  }

  /** `argmax`. */
  static greedy(more: SamplerParameters = {}): Sampler {
    return Sampler.argmax(more);
  }

  /** Nucleus sampling: the fewest most likely tokens whose probabilities reach `p`. */
  static topP(temperature = 0.6, p = 0.95, seed?: Seed, more: SamplerParameters = {}): Sampler {
    return new Sampler({ temperature, topP: p, seed, ...more });
  }

  /** Among the `k` most likely tokens. */
  static topK(temperature = 0.6, k = 40, seed?: Seed, more: SamplerParameters = {}): Sampler {
    return new Sampler({ temperature, topK: k, seed, ...more });
  }

  /** Among the tokens that are at least `p` times as likely as the most likely one. */
  static minP(temperature = 0.6, p = 0.1, seed?: Seed, more: SamplerParameters = {}): Sampler {
    return new Sampler({ temperature, minP: p, seed, ...more });
  }

  /** Top-k, then top-p among those. */
  static topKTopP(temperature = 0.6, k = 40, p = 0.95, seed?: Seed, more: SamplerParameters = {}): Sampler {
    return new Sampler({ temperature, topK: k, topP: p, seed, ...more });
  }

  /** By probability, after temperature. */
  static multinomial(temperature = 1, seed?: Seed, more: SamplerParameters = {}): Sampler {
    return new Sampler({ temperature, seed, ...more });
  }

  /** The same sampler with other values of some parameters. */
  replaced(more: SamplerParameters): Sampler {
    return new Sampler({ ...this.parameters, ...more });
  }

  /** The same sampler with another seed. */
  seeded(seed: Seed | undefined): Sampler {
    return this.replaced({ seed });
  }

  /** Its seed, if it has one. */
  get seed(): Seed | undefined {
    return this.parameters.seed;
  }

  /** How many of the most likely tokens each step returns as well. */
  get logprobs(): number {
    return this.parameters.logprobs ?? 0;
  }

  /** The parameters, as `raw.createSampler` takes them. */
  toJSON(): string {
    const sent = Object.entries(this.parameters).map(([name, value]) => [
      name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      value === undefined ? undefined : plainJson(value),
    ]);
    return object({ ...Object.fromEntries(sent), seed: seedJson(this.seed) });
  }
}

/** The most likely next tokens, most likely first, and their probabilities at temperature 1. */
export class Distribution {
  constructor(
    readonly tokens: number[],
    readonly probabilities: number[],
  ) {}

  /** The most likely token. */
  maxIndex(): number {
    return this.tokens[0];
  }

  /** A token's probability; 0 if it is not among those returned. */
  probability(token: number): number {
    return this.probabilities[this.tokens.indexOf(token)] ?? 0;
  }

  /** A token's log-probability; minus infinity if it is not among those returned. */
  logprob(token: number): number {
    return Math.log(this.probability(token));
  }

  get length(): number {
    return this.tokens.length;
  }
}
