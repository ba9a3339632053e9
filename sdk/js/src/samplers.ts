/**
 * Ready-made device programs of the server's library: `context.generate(samplers.mirostat({ mu: 10, tau:
 * 5, rate: 0.1 }))`.
 *
 * The library's rules, such as `top_p(logits, p)` and `repetition_penalty(logits, factor)`, are called in
 * texts of `device.program`. `pie_py/device_programs/rules/` has the texts of all.
 */

import { named } from "./device.ts";

/** Top-p at a temperature, of `temperature` and `p`. */
export const tempered = named("tempered");
/** Keeps the surprise at `tau` bits, of `mu`, `tau` and `rate` (Basu et al. 2021, version 2). */
export const mirostat = named("mirostat");
/** A lower temperature where the model is sure, of `temperature` and `theta` (Zhang et al. 2024). */
export const entropyTemperature = named("entropy_temperature");
/** Draws by a key, of `temperature` and a whole `key`: `watermark.gumbelScore` finds it. */
export const gumbelWatermark = named("gumbel_watermark");
/** A tournament by a key, of `temperature` and a whole `key`: `watermark.synthidScore` finds it. */
export const synthid = named("synthid");

/** Sequences of tokens as lists of one length, with -1 before the shorter ones, for `banned_sequences`. */
export function padded(sequences: readonly (readonly number[])[]): bigint[][] {
  const size = Math.max(...sequences.map((one) => one.length));
  return sequences.map((one) => [...Array(size - one.length).fill(-1n), ...one.map(BigInt)]);
}
