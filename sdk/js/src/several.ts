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
  const found = await answers(sequence, tokens, (embed) => raw.getNextDist(sequence.queue, embed, k), raw.takeDist);
  return found.map((answer) => new Distribution(...answer));
}

/** Runs what is pending and the tokens; what is asked of the hidden state after each of the latter. */
async function answers<Answer>(
  sequence: Sequence,
  tokens: number[],
  ask: (embed: number) => number,
  take: (future: number) => Answer,
): Promise<Answer[]> {
  sequence.retract();
  const most = sequence.model.maxBatchTokens;
  if (sequence.pending.length + tokens.length > most) {
    if (sequence.pending.length) await sequence.submit();
    const found: Answer[] = [];
    for (let start = 0; start < tokens.length; start += most) {
      found.push(...(await answers(sequence, tokens.slice(start, start + most), ask, take)));
    }
    return found;
  }
  // Begins with what the prefix cache has.
  if (sequence.pending.length && !sequence.tokens.length && sequence.prefixCache) await sequence.submit();
  const { length } = sequence;
  const embeds = queueForward(sequence, tokens);
  const futures = embeds.map(ask);
  if (tokens.length > 1) raw.deallocEmb(sequence.queue, [embeds[0], tokens.length - 1]);
  const found = Promise.all(futures.map((future) => sequence.outcome(future, take)));
  return found.catch((error: unknown) => {
    sequence.truncate(length);
    throw error;
  });
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

/** Texts that are scored at once, each with pages of its own. */
export const SCORED_AT_ONCE = 32;
const CHOSEN_AT_ONCE = 32; // tokens of a text, whose log-probabilities come in one batch

/** Of each token of a continuation, given what is before it. The sequence goes on with it. */
export async function logProbabilities(sequence: Sequence, continuation: number[]): Promise<number[]> {
  if (!sequence.pending.length) sequence.rerunLast(sequence.tokens.length);
  const last = sequence.pending.pop();
  if (last === undefined) {
    throw new RangeError("nothing to continue from: fill something into the context first");
  }
  const tokens = [last, ...continuation.slice(0, -1)];
  // Among one token there is no choice: what comes with it is its log-probability. A sampler chooses
  // one token of a batch, so several take turns.
  const { queue, model } = sequence;
  const samplers = continuation
    .slice(0, CHOSEN_AT_ONCE)
    .map(() => raw.createSampler(queue, '{"temperature": 0}'));
  let number = 0;
  const ask = (embed: number) => {
    const token = continuation[number];
    const mask = new Uint32Array(Math.ceil(model.vocabSize / 32));
    mask[token >> 5] = 1 << (token % 32);
    return raw.sampleMasked(queue, embed, samplers[number++ % samplers.length], mask);
  };
  try {
    const found = await answers(sequence, tokens, ask, raw.takeSample);
    return found.map(([, logprob]) => logprob);
  } finally {
    for (const sampler of samplers) raw.destroySampler(queue, sampler);
  }
}
