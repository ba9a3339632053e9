/** Images, for models that read them (trait `input-image`). */

import type { Model } from "./model.ts";
import * as raw from "./raw.ts";
import { type Sequence, UNKNOWN } from "./sequence.ts";

/** Width and height, pixels. */
export interface ImageSize {
  width: number;
  height: number;
}

/** Size of an image file. Throws PieError `invalid-argument` if it is no image. */
export function sizeOf(image: Uint8Array): ImageSize {
  const [width, height] = raw.imageSize(image);
  return { width, height };
}

/**
 * How many tokens' places an image takes among a context's tokens.
 *
 * @throws PieError `unsupported` if the model reads text only, `invalid-argument` if it is no image.
 */
export function tokensOf(model: Model, image: Uint8Array): number {
  return raw.numEmbsNeeded(model.name, ...raw.imageSize(image));
}

/** Runs an image as what follows a sequence's tokens. Throws as `Context.image`. */
export async function appendImage(sequence: Sequence, image: Uint8Array): Promise<void> {
  const { model, queue } = sequence;
  const count = tokensOf(model, image);
  const positions = raw.numPositionsNeeded(model.name, ...raw.imageSize(image));
  await sequence.flush();
  const place = sequence.length;
  const start = raw.allocEmb(queue, count);
  try {
    raw.embedImg(queue, image, [place + sequence.shift, positions], [start, count]);
    // Only the worker decodes the file. If it can't, the sequence has not changed yet.
    await sequence.synchronize();
    const most = model.maxBatchTokens;
    for (let first = 0; first < count; first += most) {
      const part = Math.min(most, count - first);
      const last = first + part === count;
      sequence.forward(Array(part).fill(UNKNOWN), last, [start + first, part]);
    }
  } finally {
    raw.deallocEmb(queue, [start, count]);
    sequence.noteImage(place, positions);
  }
  await sequence.flush();
}
