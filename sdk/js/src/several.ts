/** Several tokens in one forward, with the distribution after each of them. */

import { ready } from "./loop.ts";
import * as raw from "./raw.ts";
import { Distribution, DISTRIBUTION_SIZE } from "./sample.ts";
import type { Sequence } from "./sequence.ts";

/** Runs what is pending and the tokens; the `k` likeliest tokens after each of the latter. */
export async function distributions(
  sequence: Sequence,
  tokens: number[],
  k: number,
): Promise<Distribution[]> {
  sequence.retract();
  const most = sequence.model.maxBatchTokens;
  if (sequence.pending.length + tokens.length > most) {
    if (sequence.pending.length) await sequence.submit();
    const found: Distribution[] = [];
    for (let start = 0; start < tokens.length; start += most) {
      found.push(...(await distributions(sequence, tokens.slice(start, start + most), k)));
    }
    return found;
  }
  // Begins with what the prefix cache has.
  if (sequence.pending.length && !sequence.tokens.length && sequence.prefixCache) await sequence.submit();
  const embeds = queueForward(sequence, tokens);
  const futures = embeds.map((embed) => raw.getNextDist(sequence.queue, embed, k));
  if (tokens.length > 1) raw.deallocEmb(sequence.queue, [embeds[0], tokens.length - 1]);
  await Promise.all(futures.map(ready));
  const found = futures.map((future) => new Distribution(...raw.takeDist(future)));
  sequence.completed();
  return found;
}

/** Queues what is pending and the tokens in one forward; the embeds of the outputs. */
function queueForward(sequence: Sequence, tokens: number[]): number[] {
  const { queue, pending } = sequence;
  const before = pending.length;
  const count = before + tokens.length;
  const inputs = raw.allocEmb(queue, count);
  const outputs = tokens.length > 1 ? [inputs + before, tokens.length - 1] : [];
  const all = [...pending, ...tokens];
  try {
    raw.embedTxt(queue, all, [sequence.tokens.length + sequence.shift, count], [inputs, count]);
    sequence.forward(all, true, [inputs, count], outputs);
  } catch (error) {
    raw.deallocEmb(queue, [inputs, count]);
    throw error;
  }
  raw.deallocEmb(queue, [...(before ? [inputs, before] : []), inputs + count - 1, 1]);
  sequence.pending = [];
  // The hidden state after the last token is where the sequence goes on from.
  return [...tokens.slice(1).map((_, i) => inputs + before + i), sequence.embed[0]];
}

/** Of each token of a continuation, given what is before it. The sequence goes on with it. */
export async function logProbabilities(sequence: Sequence, continuation: number[]): Promise<number[]> {
  if (!sequence.pending.length) sequence.rerunLast(sequence.tokens.length);
  const last = sequence.pending.pop();
  if (last === undefined) {
    throw new RangeError("nothing to continue from: fill something into the context first");
  }
  const { vocabSize } = sequence.model;
  const tokens = [last, ...continuation.slice(0, -1)];
  let found = await distributions(sequence, tokens, Math.min(DISTRIBUTION_SIZE, vocabSize));
  let logs = found.map((each, i) => each.logprob(continuation[i]));
  if (logs.includes(-Infinity)) {
    // Less likely than those: ask for all.
    sequence.truncate(sequence.tokens.length - tokens.length);
    found = await distributions(sequence, tokens, vocabSize);
    logs = found.map((each, i) => each.logprob(continuation[i]));
  }
  return logs;
}
