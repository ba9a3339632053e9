/**
 * Recognition of watermarked text, without the model.
 *
 * `zScore` finds what the rule `watermark` makes likelier (Kirchenbauer et al., A
 * Watermark for Large Language Models, 2023), `gumbelScore` and `synthidScore` what the programs
 * `samplers.gumbelWatermark` and `samplers.synthid` have chosen.
 */

const GAMMA = 0x9e3779b97f4a7c15n;
const FIRST = 0xbf58476d1ce4e5b9n;
const SECOND = 0x94d049bb133111ebn;

/** The rule's `key` and `share`. */
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

/** Standard deviations by which the tokens' shares are above chance (Aaronson and Kirchner). */
export function gumbelScore(tokens: number[], { key }: { key: number | bigint }): number {
  const shares = wordsOf(tokens, key, 3).map((word) => (Number(word >> 40n) + 0.5) * 2 ** -24);
  const found = shares.reduce((sum, share) => sum - Math.log1p(-share), 0);
  return (found - shares.length) / Math.sqrt(shares.length);
}

/** Standard deviations by which the tokens have won more of 30 rounds than by chance. */
export function synthidScore(tokens: number[], { key }: { key: number | bigint }): number {
  const words = wordsOf(tokens, key, 4);
  const won = (word: bigint) => word.toString(2).slice(-30).replaceAll("0", "").length;
  const wins = words.reduce((sum, word) => sum + won(word), 0);
  return (wins - 15 * words.length) / Math.sqrt(7.5 * words.length);
}

/** The hash of each token that has so many before it, with those and a key. */
function wordsOf(tokens: number[], key: number | bigint, before: number): bigint[] {
  return tokens.slice(before).map((token, i) => {
    const start = tokens.slice(i, i + before).reduce((word, one) => hash(word, one), BigInt(key));
    return hash(start, token);
  });
}

/** A word of SplitMix64, as the server draws it. */
function hash(start: bigint, number: number): bigint {
  let word = BigInt.asUintN(64, start + BigInt(number + 1) * GAMMA);
  word = BigInt.asUintN(64, (word ^ (word >> 30n)) * FIRST);
  word = BigInt.asUintN(64, (word ^ (word >> 27n)) * SECOND);
  return word ^ (word >> 31n);
}
