/**
 * Contexts out of the KV pool and back: for programs that hold many, or wait long.
 *
 *     offload.swapOut(context);
 *     const answer = await http.get(url);
 *     offload.swapIn(context);
 */

import type { Context } from "./context.ts";
import type { Model } from "./model.ts";
import { spans } from "./pages.ts";
import * as raw from "./raw.ts";

/**
 * Moves a context's pages to the server's host memory; until `swapIn` it can't be used. Pages that
 * forks share stay.
 *
 * @throws PieError `busy` for pages that are saved or were opened, `out-of-resources` if the host
 *   memory is full, `limit-exceeded`.
 */
export function swapOut(context: Context): void {
  context.sequence.settle();
  raw.swapOut(context.queue, spans(context.sequence.pages.unshared()));
}

/** Brings a context's pages back. Does nothing if they are there. Throws PieError `out-of-resources`. */
export function swapIn(context: Context): void {
  raw.swapIn(context.queue, spans(context.sequence.pages.addresses));
}

/**
 * Gives a context's pages up: the next run computes its tokens again.
 *
 * @throws RangeError if its tokens are not all known: it was opened, or holds an image.
 */
export function discard(context: Context): void {
  context.sequence.discard();
}

/**
 * The costs of keeping, moving and recomputing pages; see `kvCosts` in the contract.
 *
 * @throws PieError `unsupported` if the server has not measured it.
 */
export function costs(model: Model): Record<string, any> {
  return JSON.parse(raw.kvCosts(model.name));
}
