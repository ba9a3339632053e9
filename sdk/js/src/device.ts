/** Choice by the server, where the model runs: it sends the token, not a distribution. */

import { COUNTING, LOOKING_BACK, type SamplerParameters } from "./sampler_parameters.ts";

/** Parameters of `DeviceSampler`; `create-sampler` of the contract says what each of them does. */
export interface SamplerOptions extends SamplerParameters {
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

  /** How many contexts beside its own it mixes the logits of. */
  get beside(): number {
    return (this.options.mix ?? [1]).length - 1;
  }

  /** Whether it has a penalty, and so counts the tokens of the context. */
  get counts(): boolean {
    return this.#has(COUNTING);
  }

  /** Whether it looks back at the tokens of the context. */
  get looksBack(): boolean {
    return this.counts || this.#has(LOOKING_BACK);
  }

  /** Whether one of these parameters has another value. */
  #has(plain: SamplerParameters): boolean {
    const given: Record<string, unknown> = { ...plain, ...this.options };
    return Object.entries(plain).some(([name, value]) => given[name] !== value);
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
