/**
 * The KV pages of a sequence: allocated, shared with forks, copied on write, given back.
 *
 * Commands name pages as spans of addresses, `[start, count, start, count, ...]`.
 */

import type { Model } from "./model.ts";
import * as raw from "./raw.ts";

/**
 * A sequence's pages, in order.
 *
 * Full pages never change, so forks, the prefix cache and saved contexts share them. A page that
 * others may read is replaced by a copy before it is written (copy-on-write).
 */
export class Pages {
  /** Tokens that fit into a page. */
  readonly size: number;
  /** Of the pages, in order. The last ones may be empty: allocated ahead. */
  addresses: number[] = [];
  /** How many of the first pages must be copied before they are written. */
  readOnly = 0;
  /** Pages that the generation under way may need in all. */
  expected = 0;
  #queue: number;
  #shared: Map<number, number>;
  #frozen: Set<number>;

  constructor(model: Model, queue: number) {
    this.size = model.pageSize;
    this.#queue = queue;
    this.#shared = model.sharedPages;
    this.#frozen = model.frozenPages;
  }

  /** Allocates pages up to `need`, and some of those that the generation will need anyway. */
  grow(need: number): void {
    const have = this.addresses.length;
    // An eighth more than there are: a generation that ends early holds few unused ones.
    const count = Math.max(need, Math.min(this.expected, need + (have >> 3))) - have;
    const start = raw.allocKvpage(this.#queue, count);
    for (let i = 0; i < count; i++) this.addresses.push(start + i);
  }

  /** Notes that the first pages never change again: they are exported, or in a cache. */
  freeze(count: number): void {
    this.readOnly = Math.max(this.readOnly, count);
    // Forks that hold these pages did not see it happen.
    for (const page of this.addresses.slice(0, count)) {
      if (this.#shared.has(page)) this.#frozen.add(page);
    }
  }

  /** Makes the pages after the full ones of `length` tokens writable. */
  copyOnWrite(length: number): void {
    const full = Math.floor(length / this.size);
    const used = length % this.size;
    const old = this.addresses.slice(full);
    const copies: number[] = [];
    if (used) {
      const copy = raw.allocKvpage(this.#queue, 1);
      try {
        raw.copyKvpage(this.#queue, old[0], 0, copy, 0, used);
      } catch (error) {
        raw.deallocKvpage(this.#queue, [copy, 1]);
        throw error;
      }
      copies.push(copy);
    }
    // Those behind are empty, but a fork that holds them too may write to them.
    this.addresses.splice(full, Infinity, ...copies);
    this.#giveBack(old);
    this.readOnly = full;
  }

  /** Empties all slots after `length` tokens, and gives the pages back that hold none. */
  truncate(length: number): void {
    const first = Math.floor(length / this.size);
    const used = length % this.size;
    const keep = first + (used > 0 ? 1 : 0);
    if (first < Math.min(keep, this.addresses.length)) {
      const page = this.addresses[first];
      if (first < this.readOnly || this.#shared.has(page) || this.#frozen.has(page)) {
        // Others still read the slots that are cut off here.
        this.readOnly = Math.max(this.readOnly, first + 1);
      } else {
        raw.truncateKvpage(this.#queue, [page, 1], [used]);
      }
    }
    if (this.addresses.length > keep) {
      this.#giveBack(this.addresses.splice(keep));
      this.readOnly = Math.min(this.readOnly, keep);
    }
  }

  /**
   * Takes over read-only pages behind the first `length` slots: as they are where a page begins
   * there; else their slots are copied, which leaves no gap.
   *
   * @param used filled slots of each.
   */
  append(pages: number[], used: number[], length: number): void {
    pages.forEach((page, i) => {
      if (length % this.size === 0) {
        this.addresses.push(page);
        this.readOnly = this.addresses.length;
      } else {
        this.#copyIn(page, used[i], length);
        this.#giveBack([page]);
      }
      length += used[i];
    });
  }

  #copyIn(page: number, count: number, length: number): void {
    if (Math.floor(length / this.size) < this.readOnly) this.copyOnWrite(length);
    for (let done = 0; done < count; ) {
      const index = Math.floor((length + done) / this.size);
      const slot = (length + done) % this.size;
      if (index === this.addresses.length) this.grow(index + 1);
      const part = Math.min(count - done, this.size - slot);
      raw.copyKvpage(this.#queue, page, done, this.addresses[index], slot, part);
      done += part;
    }
  }

  /** Gives a fork, which has none, the same pages. Both copy what they write to. */
  shareWith(other: Pages): void {
    for (const page of this.addresses) this.#shared.set(page, (this.#shared.get(page) ?? 1) + 1);
    other.addresses = this.addresses.slice();
    this.readOnly = this.addresses.length;
    other.readOnly = this.readOnly;
  }

  /** Gives all pages back. */
  release(): void {
    this.#giveBack(this.addresses.splice(0));
  }

  #giveBack(pages: number[]): void {
    const free: number[] = [];
    for (const page of pages) {
      const holders = this.#shared.get(page) ?? 1;
      if (holders === 1) free.push(page);
      else if (holders === 2) this.#shared.delete(page);
      else this.#shared.set(page, holders - 1);
    }
    for (const page of free) this.#frozen.delete(page);
    if (free.length) raw.deallocKvpage(this.#queue, spans(free));
  }
}

/** Addresses in order as `[start, count, start, count, ...]`. */
export function spans(addresses: Iterable<number>): number[] {
  const found: number[] = [];
  for (const address of addresses) {
    const last = found.length - 1;
    if (last > 0 && found[last - 1] + found[last] === address) found[last] += 1;
    else found.push(address, 1);
  }
  return found;
}

/** The addresses that spans stand for, in order. */
export function addresses(spans: number[]): number[] {
  const found: number[] = [];
  for (let i = 0; i < spans.length; i += 2) {
    for (let n = 0; n < spans[i + 1]; n++) found.push(spans[i] + n);
  }
  return found;
}
