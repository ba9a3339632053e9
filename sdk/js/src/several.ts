/** Several tokens in one forward, with the distribution after each of them. */

import * as raw from "./raw.ts";
import { Distribution } from "./sample.ts";
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
  const { length, queue } = sequence;
  const embeds = queueForward(sequence, tokens);
  const futures = embeds.map((embed) => raw.getNextDist(queue, embed, k));
  if (tokens.length > 1) raw.deallocEmb(queue, [embeds[0], tokens.length - 1]);
  try {
    const found = await Promise.all(futures.map((future) => sequence.outcome(future, raw.takeDist)));
    return found.map((answer) => new Distribution(...answer));
  } catch (error) {
    sequence.truncate(length);
    throw error;
  }
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
