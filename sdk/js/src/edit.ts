/**
 * Changes of what lies in the pages of a sequence: tokens dropped, hidden, or kept out of a tree.
 *
 * All but `keep` leave the positions of the other tokens as they are, and all end the sequence's part
 * in the prefix cache: it is no plain text any more.
 */

import { spans } from "./pages.ts";
import * as raw from "./raw.ts";
import type { Image, Sequence } from "./sequence.ts";

/**
 * Gives the pages of the tokens from `first` up to `last` back.
 *
 * @param close whether the tokens behind them get new positions, as if there had been no gap.
 */
export function drop(sequence: Sequence, first: number, last: number, close: boolean): void {
  const { size } = sequence.pages;
  const there = sequence.tokens.length;
  if (first % size || last % size || !(first >= 0 && first <= last && last <= there)) {
    throw new RangeError(
      `tokens ${first} to ${last} are no whole pages of ${size} tokens, of ${there} in the pages`,
    );
  }
  const distance = close ? sequence.position(last) - sequence.position(first) : 0;
  const count = last - first;
  sequence.confirm();
  sequence.prefixCache = false;
  sequence.pages.remove(first / size, last / size);
  sequence.tokens.splice(first, count);
  sequence.confirmed = sequence.tokens.length;
  sequence.shift += count - distance;
  moveImages(sequence, sequence.images, (place) => Math.min(place, Math.max(first, place - count)));
  if (close) shift(sequence, first, -distance);
  const kept = [...sequence.hidden].filter((place) => place < first || place >= last);
  sequence.hidden = new Set(kept.map((place) => (place >= last ? place - count : place)));
}

/** Turns the tokens in the pages from `first` on, where a page begins, to other positions. */
function shift(sequence: Sequence, first: number, distance: number): void {
  const { pages } = sequence;
  const length = sequence.tokens.length;
  const turned: number[] = [];
  for (let index = first / pages.size; index * pages.size < length; index++) {
    turned.push(pages.makeWritable(index, Math.min(pages.size, length - index * pages.size)));
  }
  if (!turned.length) return;
  raw.shiftKvpage(sequence.queue, spans(turned), distance);
}

/** Notes where images are now whose tokens have moved, or are gone. */
function moveImages(sequence: Sequence, images: Image[], moved: (place: number) => number): void {
  const found = images.map(([first, end, positions]): Image => [moved(first), moved(end), positions]);
  sequence.images = found.filter(([first, end]) => first < end);
}

/** Gives up the tokens at some places; the others move together and keep their positions. */
export function evict(sequence: Sequence, places: Iterable<number>): void {
  const gone = new Set(places);
  const { length } = sequence.tokens;
  for (const place of gone) {
    if (!(Number.isInteger(place) && place >= 0 && place < length)) {
      throw new RangeError(`place ${place} is not among the ${length} tokens in the pages`);
    }
  }
  const kept: number[] = [];
  const moved: number[] = []; // where each place is afterwards, or what follows it
  for (let place = 0; place <= length; place++) {
    moved.push(kept.length);
    if (place < length && !gone.has(place)) kept.push(place);
  }
  const hidden = [...sequence.hidden].filter((place) => !gone.has(place));
  const { pending, images } = sequence;
  sequence.prefixCache = false;
  sequence.pending = [];
  sequence.images = [];
  keep(sequence, 0, kept);
  sequence.pending = pending;
  moveImages(sequence, images, (place) => moved[place]);
  sequence.hidden = new Set(hidden.map((place) => moved[place]));
  sequence.shift += gone.size;
}

/** Lets no later token attend to those from `first` up to `last`, or lets them again. */
export function hide(sequence: Sequence, first: number, last: number, hidden: boolean): void {
  const { length } = sequence.tokens;
  const { size } = sequence.pages;
  if (!(first >= 0 && first <= last && last <= length)) {
    throw new RangeError(`tokens ${first} to ${last} are not among the ${length} in the pages`);
  }
  sequence.confirm();
  sequence.prefixCache = false;
  for (let place = first; place < last; place++) {
    if (hidden) sequence.hidden.add(place);
    else sequence.hidden.delete(place);
  }
  const pages: number[] = [];
  const masks: number[] = [];
  for (let index = Math.floor(first / size); index * size < last; index++) {
    const used = Math.min(size, length - index * size);
    pages.push(sequence.pages.makeWritable(index, used), 1);
    let bits = 0;
    for (let slot = 0; slot < used; slot++) {
      if (sequence.hidden.has(index * size + slot)) bits += 2 ** slot;
    }
    masks.push(bits);
  }
  raw.maskKvpage(sequence.queue, pages, masks);
}

/**
 * Keeps, of the tokens from `first` on, those at some places; slots move, nothing runs again.
 *
 * @param first how many tokens stay as they are.
 * @param places of the others, rising; the path of a tree.
 */
export function keep(sequence: Sequence, first: number, places: number[]): void {
  const { pages, queue } = sequence;
  const { length } = sequence.tokens;
  const { size } = pages;
  if (places.some((place, i) => !(place > (i ? places[i - 1] : first - 1) && place < length))) {
    throw new RangeError(`places ${places} have to rise, from ${first} to ${length - 1}`);
  }
  if ((sequence.images.at(-1)?.[1] ?? 0) > first) {
    throw new RangeError(`an image is among the tokens from ${first} on: \`evict\` gives tokens up`);
  }
  sequence.confirm();
  places.forEach((source, i) => {
    const target = first + i;
    if (source === target) return;
    const index = Math.floor(target / size);
    const page = pages.makeWritable(index, Math.min(size, length - index * size));
    const origin = pages.addresses[Math.floor(source / size)];
    raw.copyKvpage(queue, origin, source % size, page, target % size, 1);
    sequence.tokens[target] = sequence.tokens[source];
  });
  const kept = first + places.length;
  if (kept < length) sequence.setLength(kept); // behind the copies, in the same queue
}
