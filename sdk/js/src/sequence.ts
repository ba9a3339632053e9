/**
 * A sequence: tokens whose keys and values lie in the server's KV pages, and the commands for that.
 *
 * Programs use a `Context`, which adds texts, messages and generations.
 */

import type { DeviceChoice } from "./choice.ts";
import { isPieError } from "./errors.ts";
import { ready } from "./loop.ts";
import type { Model } from "./model.ts";
import { addresses, Pages, spans } from "./pages.ts";
import * as raw from "./raw.ts";
import type { Run } from "./run.ts";
import { Distribution } from "./sample.ts";

/** A token whose keys and values are in the pages, but whose number is not known here. */
export const UNKNOWN = -1;

/** Places of an image's first token and that behind its last one, and how many positions it takes. */
export type Image = [first: number, end: number, positions: number];

/** Tokens in pages, tokens that wait for their run, and the queue of commands. */
export class Sequence {
  readonly queue: number;
  readonly pages: Pages;
  /** Tokens whose keys and values are in the pages, or will be when the queued commands have run. */
  tokens: number[] = [];
  /** Tokens that follow these and are not queued yet. */
  pending: number[] = [];
  /** Span of the embed for the newest token's hidden state; empty before the first run. */
  embed: number[] = [];
  /** Span of a second embed, for runs; empty before the first. */
  spare: number[] = [];
  /** True if `embed` holds the hidden state after the last of `tokens`. */
  hasHidden = false;
  /**
   * How many of the first tokens have run for certain. If commands fail, the others are pending
   * again.
   */
  confirmed = 0;
  /** A run that goes on beyond all this; it is ended before anything else is queued. */
  tentative: Run | null = null;
  /** Number of the generation that began last. */
  generation = 0;
  /** What chooses its tokens; ends where another one begins: then that generation can't go on. */
  chooser: DeviceChoice | null = null;
  /** True if that generation waits for a token. */
  choosing = false;
  /** How far the next token's position lies behind its place among `tokens`. */
  shift = 0;
  /** Images that take fewer positions than tokens. */
  images: Image[] = [];
  #offered = 0; // how many of the first pages the prefix cache has been offered
  #released = false;

  constructor(
    readonly model: Model,
    readonly adapter: string | null,
    public prefixCache: boolean,
  ) {
    this.queue = raw.createQueue(model.name);
    this.pages = new Pages(model, this.queue);
  }

  get length(): number {
    return this.tokens.length + this.pending.length;
  }

  /** Runs what is pending; the embed of the hidden state after it. */
  async outputEmbed(): Promise<number> {
    this.retract();
    if (!this.pending.length && !this.hasHidden) this.#rerunLast();
    if (this.pending.length === 1) {
      this.forward(this.pending, true);
      this.pending = []; // only now: if that fails, the token still waits
    } else {
      await this.submit();
    }
    if (!this.hasHidden) {
      throw new RangeError("nothing to continue from: fill something into the context first");
    }
    return this.embed[0];
  }

  /** Runs what is pending; the `k` most likely tokens after it. */
  async nextDistribution(k: number): Promise<Distribution> {
    const future = raw.getNextDist(this.queue, await this.outputEmbed(), k);
    return new Distribution(...(await this.outcome(future, raw.takeDist)));
  }

  /** Queues what is pending, in chunks that the model and the embed pool can take. */
  async submit(): Promise<void> {
    if (this.prefixCache && !this.shift && !this.pages.addresses.length && this.pending.length) {
      // The last token has to run in any case: that gives its hidden state.
      await this.#findPrefix(this.pending.length - 1);
    }
    let most = this.model.maxBatchTokens;
    while (this.pending.length) {
      const chunk = this.pending.slice(0, most);
      const last = chunk.length === this.pending.length;
      try {
        this.forward(chunk, last);
      } catch (error) {
        // Embeds are few, and other inferlets use them too: a smaller chunk needs fewer at once. If it
        // was pages that ran out, a smaller chunk does not help.
        const room = this.pages.addresses.length * this.pages.size;
        const shortOfPages = room < this.tokens.length + chunk.length;
        if (!isPieError(error, "out-of-resources") || chunk.length < 2 || shortOfPages) throw error;
        most = chunk.length >> 1;
        continue;
      }
      this.pending = this.pending.slice(chunk.length);
      this.#offerPrefix();
      // The next chunk needs the embeds of this one, which are free once it has run.
      if (!last) await this.synchronize();
    }
  }

  /** Runs what is pending, and waits until it is in the pages. */
  async flush(): Promise<void> {
    this.retract();
    await this.submit();
    await this.synchronize();
  }

  /**
   * Queues tokens: embeds them, runs them, keeps their keys and values. If it throws, none of them is
   * queued.
   *
   * @param output whether the last one's hidden state is wanted.
   * @param given span of embeds that hold them already.
   * @param others spans of embeds for the hidden states after tokens before the last.
   */
  forward(tokens: number[], output: boolean, given?: number[], others: number[] = []): void {
    if (this.#released) throw new Error("the context is released");
    this.tentative?.retract();
    const { queue, pages } = this;
    const start = this.tokens.length;
    const count = tokens.length;
    const first = Math.floor(start / pages.size);
    const need = Math.ceil((start + count) / pages.size);
    if (first < pages.readOnly) pages.copyOnWrite(start);
    if (need > pages.addresses.length) pages.grow(need);
    if (!this.embed.length) this.embed = [raw.allocEmb(queue, 1), 1];
    const embeds = given ?? (count === 1 ? this.embed : [raw.allocEmb(queue, count), count]);
    this.hasHidden = false;
    try {
      if (!given) raw.embedTxt(queue, tokens, [start + this.shift, count], embeds);
      const inputs = spans(pages.addresses.slice(0, Math.ceil(start / pages.size)));
      const targets = spans(pages.addresses.slice(first, need));
      const outputs = output ? [...others, ...this.embed] : [];
      if (this.adapter === null) {
        raw.forward(queue, inputs, embeds, targets, outputs, []);
      } else {
        raw.forwardWithAdapter(queue, this.adapter, inputs, embeds, targets, outputs, []);
      }
    } finally {
      if (count > 1 && !given) raw.deallocEmb(queue, embeds);
    }
    this.tokens.push(...tokens);
    this.hasHidden = output;
  }

  /** All tokens have run, and so have the first pending ones: they are in the pages. */
  ran(count: number): void {
    if (count > 0) {
      for (const token of this.pending.splice(0, count)) this.tokens.push(token);
      this.hasHidden = false;
    }
    this.confirmed = this.tokens.length;
  }

  /**
   * The value of a future behind all commands so far, taken by `take`. If it throws, what has failed to
   * run is pending again.
   */
  async outcome<T>(future: number, take: (future: number) => T): Promise<T> {
    const { length } = this.tokens;
    await ready(future);
    let found: T;
    try {
      found = take(future);
    } catch (error) {
      this.recover(error);
      throw error;
    }
    this.confirmed = Math.max(this.confirmed, Math.min(length, this.tokens.length));
    return found;
  }

  /** Waits until all commands so far have taken effect. Throws as `outcome`. */
  async synchronize(): Promise<void> {
    await this.outcome(raw.synchronize(this.queue), raw.take);
  }

  /**
   * After an error of a future: if commands before it have failed, their tokens wait again. An image
   * whose commands have failed is gone.
   */
  recover(error: unknown): void {
    if (!isPieError(error, "internal", "failed-dependency")) return; // of the future alone
    this.retract();
    const lost = this.tokens.slice(this.confirmed);
    if (lost.length) {
      this.setLength(this.confirmed);
      this.pending = [...lost.filter((token) => token !== UNKNOWN), ...this.pending];
    }
    try {
      this.settle(); // until then the queue takes no commands
    } catch (other) {
      if (!isPieError(other)) throw other;
    }
  }

  /**
   * Ends a run, and waits until all commands so far have taken effect: the whole inferlet waits.
   * Throws as `outcome`.
   */
  settle(): void {
    this.retract();
    const future = raw.synchronize(this.queue);
    raw.wait([future]);
    try {
      raw.take(future);
    } catch (error) {
      this.recover(error);
      throw error;
    }
    this.confirmed = this.tokens.length;
  }

  /** Ends the run, if there is one: what the sequence does not show is undone. */
  retract(): void {
    this.tentative?.retract();
  }

  /** Begins the empty sequence with shared pages that hold the first of the pending tokens. */
  async #findPrefix(count: number): Promise<void> {
    if (this.#released) throw new Error("the context is released");
    for (;;) {
      const wanted = this.pending.slice(0, count);
      const [found, other] = raw.matchPrefix(this.queue, this.adapter ?? "", wanted);
      if (other) {
        await ready(other); // another inferlet computes more of it at this moment
        raw.take(other);
        continue;
      }
      const { pages } = this;
      pages.addresses = addresses(found);
      pages.readOnly = this.#offered = pages.addresses.length;
      const length = (this.confirmed = this.#offered * pages.size);
      this.tokens = this.pending.slice(0, length);
      this.pending = this.pending.slice(length);
      return;
    }
  }

  /** Lets other inferlets find the pages that are full, if there are more than there were. */
  #offerPrefix(): void {
    const full = Math.floor(this.tokens.length / this.pages.size);
    if (!this.prefixCache || full <= this.#offered) return;
    raw.insertPrefix(this.queue, spans(this.pages.addresses.slice(0, full)));
    this.#offered = full;
    this.pages.freeze(full);
  }

  /** A second sequence with the same content, that shares the pages. */
  fork(): Sequence {
    if (this.#released) throw new Error("the context is released");
    // The fork would not know of a failure, which may still come while another branch uses this one.
    this.retract();
    if (this.confirmed < this.tokens.length) this.settle();
    const other = new Sequence(this.model, this.adapter, this.prefixCache);
    this.pages.shareWith(other.pages);
    other.tokens = this.tokens.slice();
    other.confirmed = this.confirmed;
    other.pending = this.pending.slice();
    other.#offered = this.#offered;
    other.shift = this.shift;
    other.images = this.images.slice();
    return other;
  }

  /** Keeps the first `length` tokens, at most as many as there are. */
  truncate(length: number): void {
    const held = this.tokens.length;
    if (length >= held) {
      this.pending.length = Math.min(this.pending.length, length - held);
      return;
    }
    this.retract();
    this.setLength(length);
    this.pending = [];
  }

  /** Appends the pages saved under a name; their tokens are not known. */
  load(name: string): void {
    const mapped = raw.importKvpage(this.queue, name);
    const used = raw.kvpageUsed(this.queue, mapped);
    this.pages.append(addresses(mapped), used, this.tokens.length);
    const count = used.reduce((sum, each) => sum + each, 0);
    for (let i = 0; i < count; i++) this.tokens.push(UNKNOWN);
    this.confirmed = this.tokens.length;
  }

  /** Cuts off the last token, to run it again for its hidden state. */
  #rerunLast(): void {
    const last = this.tokens.at(-1) ?? UNKNOWN;
    if (last === UNKNOWN) return;
    this.pending = [last];
    this.setLength(this.tokens.length - 1);
  }

  /** Forgets the tokens in the pages from `length` on. */
  setLength(length: number): void {
    this.pages.truncate(length);
    this.tokens.length = length;
    this.confirmed = Math.min(this.confirmed, length);
    this.#offered = Math.min(this.#offered, Math.floor(length / this.pages.size));
    this.hasHidden = false;
    for (let last; (last = this.images.at(-1)) !== undefined && last[1] > length; ) {
      this.images.pop();
      const [first, end, positions] = last;
      this.shift -= positions - (end - first);
      this.noteImage(first, positions);
    }
  }

  /** Notes that the tokens from place `first` on are an image that takes so many positions. */
  noteImage(first: number, positions: number): void {
    const end = this.tokens.length;
    if (first >= end || positions === end - first) return;
    this.images.push([first, end, positions]);
    this.shift += positions - (end - first);
  }

  /** Gives everything back; a second call does nothing. It can't be used any more. */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    this.retract();
    try {
      this.#offerPrefix();
    } catch (error) {
      if (!isPieError(error)) throw error; // what is swapped out cannot be offered
    } finally {
      this.pages.release();
      for (const embed of [this.embed, this.spare]) {
        if (embed.length) raw.deallocEmb(this.queue, embed);
      }
      this.chooser?.close();
      raw.destroyQueue(this.queue);
    }
  }

  /** All tokens that are known, pending ones included. */
  knownTokens(): number[] {
    return [...this.tokens, ...this.pending].filter((token) => token !== UNKNOWN);
  }

  /** The known tokens before the next one, as many as a decoder of text looks at. */
  tail(): number[] {
    const last = [...this.tokens.slice(-9), ...this.pending].slice(-9);
    return last.filter((token) => token !== UNKNOWN);
  }
}
