/**
 * Recognition of watermarked text: what `new DeviceSampler({ watermarkBias })` makes likelier.
 *
 * The detector needs no model. Kirchenbauer et al., A Watermark for Large Language Models, 2023.
 */

const GAMMA = 0x9e3779b97f4a7c15n;
const FIRST = 0xbf58476d1ce4e5b9n;
const SECOND = 0x94d049bb133111ebn;

/** The sampler's `watermarkKey` and `watermarkShare`. */
export interface WatermarkOptions {
  key?: number | bigint;
  share?: number;
}

/** Whether a hash of the key and the token before favours a token. */
export function isGreen(
  before: number,
  token: number,
  { key = 0, share = 0.5 }: WatermarkOptions = {},
): boolean {
  return Number(hash(hash(BigInt(key), before), token) >> 40n) < share * 2 ** 24;
}

/** Standard deviations by which favoured tokens are more than chance makes of the `share`. */
export function zScore(tokens: number[], { key = 0, share = 0.5 }: WatermarkOptions = {}): number {
  const pairs = tokens.length - 1;
  const green = tokens.slice(1).filter((token, i) => isGreen(tokens[i], token, { key, share })).length;
  return (green - share * pairs) / Math.sqrt(pairs * share * (1 - share));
}

/** A word of SplitMix64, as the server draws it. */
function hash(start: bigint, number: number): bigint {
  let word = BigInt.asUintN(64, start + BigInt(number + 1) * GAMMA);
  word = BigInt.asUintN(64, (word ^ (word >> 30n)) * FIRST);
  word = BigInt.asUintN(64, (word ^ (word >> 27n)) * SECOND);
  return word ^ (word >> 31n);
}
