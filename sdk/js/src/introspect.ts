/** Attention of a context's last tokens: which tokens matter, and which can be dropped. */

import type { Context } from "./context.ts";
import { ready } from "./loop.ts";
import { spans } from "./pages.ts";
import * as raw from "./raw.ts";
import { UNKNOWN } from "./sequence.ts";

/** Options of `attention`. */
export interface AttentionOptions {
  /** How many of the last tokens; by default one. */
  observed?: number;
  /** "total" is one row, averaged over layers and heads; "layers" one a layer; "heads" one a head,
   * layer by layer. */
  detail?: raw.Detail;
}

/**
 * Attention that the last tokens pay to all tokens of a context, `[rows, tokens]`.
 *
 * The last tokens run once more, beside the context, which stays as it is. A number is the sum over the
 * observed tokens of their attention probabilities, so a row adds up to `observed`.
 *
 * @param context flushed first, if something waits in it.
 * @throws RangeError if there are fewer tokens, or the observed ones are not known; PieError
 *   `limit-exceeded` (too many numbers or inputs), `unsupported`, `out-of-resources`.
 */
export async function attention(
  context: Context,
  { observed = 1, detail = "total" }: AttentionOptions = {},
): Promise<number[][]> {
  await context.flush();
  const { queue, seqLen: length, sequence } = context;
  const before = length - observed;
  const tokens = sequence.tokens.slice(Math.max(0, before));
  if (!(observed > 0 && before >= 0) || tokens.includes(UNKNOWN)) {
    throw new RangeError(
      `${observed} tokens can't be observed: ${length} are there, or some unknown`,
    );
  }
  const pages = spans(sequence.pages.addresses.slice(0, Math.ceil(length / context.pageSize)));
  const embeds = [raw.allocEmb(queue, observed), observed];
  let future: number;
  try {
    const positions = spans(tokens.map((_, i) => sequence.position(before + i)));
    raw.embedTxt(queue, tokens, positions, embeds);
    // They see what came before and each other, but not what the pages hold of themselves.
    const mask = tokens.flatMap((_, i) => [5, 0, before, observed, i + 1, observed - i - 1]);
    const adapter = sequence.adapter ?? "";
    future = raw.forwardWithAttention(queue, pages, embeds, [], [], mask, observed, detail, adapter);
  } finally {
    raw.deallocEmb(queue, embeds);
  }
  await ready(future);
  const [rows, numbers] = raw.takeAttention(future);
  const width = length + observed;
  return Array.from({ length: rows }, (_, row) => {
    const of = numbers.slice(row * width, (row + 1) * width);
    return [...of.slice(0, before), ...of.slice(length)];
  });
}
