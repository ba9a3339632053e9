/** Samplers, which choose a token from a distribution, and the distributions. */

import { DeviceSampler, type SamplerOptions } from "./device.ts";

/** Most likely tokens that a sampler looks at. */
export const DISTRIBUTION_SIZE = 256;
/** Weight, relative to the most likely token's, below which a token is left out. */
const NEGLIGIBLE = 1e-7;

/** Fields of a `Sampler`. */
export interface SamplerFields {
  temperature?: number;
  k?: number;
  p?: number;
  /** Share of the most likely token's probability that a token must have. */
  minimum?: number;
  /** Same seed, same choices; without one it is random. */
  seed?: number | bigint;
}

/**
 * How to choose a token. Make one with a static method, as in `Sampler.topP(0.6, 0.95)`.
 *
 * The filters apply in this order: temperature, top-k, top-p, min-p. A temperature of 0 takes the
 * most likely token. At most the 256 most likely tokens are looked at.
 */
export class Sampler {
  readonly temperature: number;
  readonly k: number | undefined;
  readonly p: number;
  readonly minimum: number;
  readonly seed: number | bigint | undefined;

  /** Throws RangeError for what makes no sense. */
  constructor({ temperature = 1, k, p = 1, minimum = 0, seed }: SamplerFields = {}) {
    if (new.target !== Sampler) {
      throw new TypeError(
        "Sampler has no subclasses: give your rule to `context.generate(undefined, { choose: rule })`",
      );
    }
    if (!(temperature >= 0)) {
      throw new RangeError(
        `temperature ${temperature} is negative: 0 always takes the most likely token, 1 keeps the` +
          " model's probabilities",
      );
    }
    if (k !== undefined && !(k >= 1)) throw new RangeError(`k of top-k is ${k}: it must be at least 1`);
    if (!(p > 0 && p <= 1)) throw new RangeError(`p of top-p is ${p}: it must be above 0 and at most 1`);
    if (!(minimum >= 0 && minimum <= 1)) {
      throw new RangeError(`p of min-p is ${minimum}: it must be from 0 to 1`);
    }
    this.temperature = temperature;
    this.k = k;
    this.p = p;
    this.minimum = minimum;
    this.seed = seed;
  }

  /** Always the most likely token. */
  static argmax(): Sampler {
    return new Sampler({ temperature: 0 });
  }

  /** `argmax`. */
  static greedy(): Sampler {
    return Sampler.argmax();
  }

  /** Nucleus sampling: the fewest most likely tokens whose probabilities reach `p`. */
  static topP(temperature = 0.6, p = 0.95, seed?: number | bigint): Sampler {
    return new Sampler({ temperature, p, seed });
  }

  /** Among the `k` most likely tokens. */
  static topK(temperature = 0.6, k = 40, seed?: number | bigint): Sampler {
    return new Sampler({ temperature, k, seed });
  }

  /** Among the tokens that are at least `p` times as likely as the most likely one. */
  static minP(temperature = 0.6, p = 0.1, seed?: number | bigint): Sampler {
    return new Sampler({ temperature, minimum: p, seed });
  }

  /** Top-k, then top-p among those. */
  static topKTopP(temperature = 0.6, k = 40, p = 0.95, seed?: number | bigint): Sampler {
    return new Sampler({ temperature, k, p, seed });
  }

  /** By probability, after temperature. */
  static multinomial(temperature = 1, seed?: number | bigint): Sampler {
    return new Sampler({ temperature, seed });
  }

  /** The same sampler with another seed. */
  seeded(seed: number | bigint | undefined): Sampler {
    return new Sampler({ ...this, seed });
  }

  /**
   * The same choice, made by the server among the whole vocabulary.
   *
   * @param more other parameters, such as `repetitionPenalty` and `logprobs`.
   */
  onDevice(more: SamplerOptions = {}): DeviceSampler {
    const { temperature, k = 0, p, minimum, seed } = this;
    return new DeviceSampler({ temperature, topK: k, topP: p, minP: minimum, seed, ...more });
  }

  /** How many of the most likely tokens the sampler needs to see. */
  get size(): number {
    return this.temperature === 0 ? 1 : Math.min(this.k ?? DISTRIBUTION_SIZE, DISTRIBUTION_SIZE);
  }

  /**
   * Chooses one of the tokens.
   *
   * @param tokens most likely first.
   * @param probabilities theirs, at temperature 1.
   * @param random draws a number, at least 0 and less than 1; called once, never at temperature 0.
   */
  choose(tokens: number[], probabilities: number[], random: () => number = Math.random): number {
    if (this.temperature === 0) return tokens[0];
    const best = probabilities[0];
    const floor = best * NEGLIGIBLE ** this.temperature;
    let count = Math.min(tokens.length, this.k ?? tokens.length);
    count = firstBelow(probabilities, floor, count);
    const sums: number[] = [];
    const weights: number[] = [];
    let sum = 0;
    for (let i = 0; i < count; i++) {
      weights.push((probabilities[i] / best) ** (1 / this.temperature));
      sum += weights[i];
      sums.push(sum);
    }
    if (this.p < 1) {
      const enough = sums.findIndex((each) => each >= this.p * sum);
      count = Math.min(count, enough < 0 ? count : enough + 1);
    }
    if (this.minimum > 0) count = firstBelow(weights, this.minimum, count);
    const drawn = random() * sums[count - 1];
    const chosen = sums.findIndex((each) => drawn < each);
    return tokens[chosen < 0 ? count - 1 : Math.min(chosen, count - 1)];
  }
}

/** How many of the first `count` falling numbers are not below a floor; at least 1. */
function firstBelow(numbers: number[], floor: number, count: number): number {
  let found = 1;
  while (found < count && numbers[found] >= floor) found++;
  return found;
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
