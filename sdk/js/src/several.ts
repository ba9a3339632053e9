/** Several tokens in one forward, with the distribution after each of them. */

import * as raw from "./raw.ts";
import { Distribution } from "./sample.ts";
import type { Sequence } from "./sequence.ts";

/** Places of tokens that a token attends to: from, up to. */
export type Ranges = [number, number][];

/** Where the tokens of one forward stand (by default one after the other), and what each attends to
 * (by default all before it, and itself). */
export interface Layout {
  positions?: number[];
  mask?: Ranges[];
}

/**
 * The layout of a tree of tokens: each attends to all before the tree, and its ancestors.
 *
 * @param parents of each token the number of the one it follows, an earlier one; -1: it follows what
 *   was there before.
 * @param first place of the first token.
 * @param shift position of a place, less that place.
 */
export function tree(parents: number[], first: number, shift: number): Layout {
  const paths: number[][] = [];
  parents.forEach((parent, i) => {
    if (!(parent >= -1 && parent < i)) {
      throw new RangeError(`the parent of token ${i} is ${parent}: it must be an earlier one or -1`);
    }
    paths.push([...(paths[parent] ?? []), i]);
  });
  const mask = paths.map((path): Ranges => [
    [0, first],
    ...path.map((i): [number, number] => [first + i, first + i + 1]),
  ]);
  return { positions: paths.map((path) => first + shift + path.length - 1), mask };
}

/** Runs what is pending and the tokens; the `k` likeliest tokens after each of the latter. */
export async function distributions(
  sequence: Sequence,
  tokens: number[],
  k: number,
  layout: Layout = {},
): Promise<Distribution[]> {
  const found = await answers(sequence, tokens, layout, (embed) => raw.getNextDist(sequence.queue, embed, k), raw.takeDist);
  return found.map((answer) => new Distribution(...answer));
}

/** Runs what is pending and the tokens; what is asked of the hidden state after each of the latter. */
async function answers<Answer>(
  sequence: Sequence,
  tokens: number[],
  layout: Layout,
  ask: (embed: number) => number,
  take: (future: number) => Answer,
): Promise<Answer[]> {
  sequence.retract();
  const most = sequence.model.maxBatchTokens;
  const plain = !layout.positions && !layout.mask;
  if (plain && sequence.pending.length + tokens.length > most) {
    if (sequence.pending.length) await sequence.submit();
    const found: Answer[] = [];
    for (let start = 0; start < tokens.length; start += most) {
      found.push(...(await answers(sequence, tokens.slice(start, start + most), layout, ask, take)));
    }
    return found;
  }
  // Begins with what the prefix cache has.
  if (sequence.pending.length && !sequence.tokens.length && sequence.prefixCache) await sequence.submit();
  const { length } = sequence;
  const embeds = queueForward(sequence, tokens, layout);
  if (!plain) sequence.prefixCache = false; // it is no text, as the prefix cache takes it
  const futures = embeds.map(ask);
  if (tokens.length > 1) raw.deallocEmb(sequence.queue, [embeds[0], tokens.length - 1]);
  const found = Promise.all(futures.map((future) => sequence.outcome(future, take)));
  return found.catch((error: unknown) => {
    sequence.truncate(length);
    throw error;
  });
}

/** Queues what is pending and the tokens in one forward; the embeds of the outputs. */
function queueForward(sequence: Sequence, tokens: number[], layout: Layout): number[] {
  const { queue, pending } = sequence;
  const before = pending.length;
  const count = before + tokens.length;
  const inputs = raw.allocEmb(queue, count);
  const outputs = tokens.length > 1 ? [inputs + before, tokens.length - 1] : [];
  const all = [...pending, ...tokens];
  try {
    const start = sequence.tokens.length;
    const position = start + sequence.shift;
    const positions = layout.positions
      ? [...(before ? [position, before] : []), ...layout.positions.flatMap((each) => [each, 1])]
      : [position, count];
    raw.embedTxt(queue, all, positions, [inputs, count]);
    const mask = layout.mask ? runs(start, before, count, layout.mask) : [];
    sequence.forward(all, true, [inputs, count], mask, outputs);
  } catch (error) {
    raw.deallocEmb(queue, [inputs, count]);
    throw error;
  }
  raw.deallocEmb(queue, [...(before ? [inputs, before] : []), inputs + count - 1, 1]);
  sequence.pending = [];
  // The hidden state after the last token is where the sequence goes on from.
  return [...tokens.slice(1).map((_, i) => inputs + before + i), sequence.embed[0]];
}

/** A mask as the server wants it: for each input the lengths of hidden and visible stretches. */
function runs(start: number, pending: number, count: number, mask: Ranges[]): number[] {
  const width = start + count;
  const rows = Array.from({ length: pending }, (_, i): Ranges => [[0, start + i + 1]]);
  return [...rows, ...mask].flatMap((ranges) => {
    const lengths: number[] = [];
    let at = 0;
    for (const [first, last] of ranges.toSorted((one, other) => one[0] - other[0])) {
      if (!(at <= first && first <= last && last <= width)) {
        throw new RangeError(`the range ${first} to ${last} overlaps another or is beyond ${width}`);
      }
      lengths.push(first - at, last - first);
      at = last;
    }
    lengths.push(width - at);
    return [lengths.length, ...lengths];
  });
}

/** Texts that are scored at once, each with pages of its own. */
export const SCORED_AT_ONCE = 32;

/** Of each token of a continuation, given what is before it. The sequence goes on with it. */
export async function logProbabilities(sequence: Sequence, continuation: number[]): Promise<number[]> {
  if (!sequence.pending.length) sequence.rerunLast(sequence.tokens.length);
  const last = sequence.pending.pop();
  if (last === undefined) {
    throw new RangeError("nothing to continue from: fill something into the context first");
  }
  const tokens = [last, ...continuation.slice(0, -1)];
  // For programs of few sizes, which run together.
  const padded = Array.from({ length: 2 ** Math.ceil(Math.log2(tokens.length)) }, (_, i) => continuation[i] ?? 0);
  const { queue } = sequence;
  const sampler = raw.createSampler(queue, JSON.stringify({ program: "forced", given: { tokens: padded } }));
  try {
    const ask = (embed: number) => raw.sample(queue, embed, sampler);
    const found = await answers(sequence, tokens, {}, ask, raw.takeSample);
    return found.map(([, logprob]) => logprob);
  } finally {
    raw.destroySampler(queue, sampler);
  }
}
