/**
 * A run of the server as a generation uses it: many tokens for one call.
 *
 * The server goes on by itself, token after token, up to a few more than were asked for. The sequence
 * shows the tokens that the program has been given, as it would without a run. Then the program either
 * goes on with those, or does something else: then the run is ended, and what came after the tokens
 * given is undone (`retract`).
 */

import { isPieError } from "./errors.ts";
import { ready } from "./loop.ts";
import { addresses, spans } from "./pages.ts";
import * as raw from "./raw.ts";
import type { Sequence } from "./sequence.ts";

/** No room. A program that goes step by step would not have asked for it, so it is no error. */
const SCARCE = ["out-of-resources", "limit-exceeded"];

/** The tokens of a run with their text. */
export type WholeText = { tokens: number[]; text: string };

/** At most one run of a sequence at a time. */
export class Run {
  /** True if choices were undone since it was last set to false. */
  undone = false;
  #most = 0; // tokens that it may come to
  #sequence: Sequence;
  #handle: number | null = null;
  #came: number[] = []; // tokens that the program has not been given
  #given = 0; // tokens that it has
  #last = 0; // of these

  constructor(sequence: Sequence) {
    this.#sequence = sequence;
  }

  /** True if the next token is the run's; it is undone if other tokens are pending. */
  goesOn(): boolean {
    if (this.#handle === null) return false;
    const { pending } = this.#sequence;
    const asGiven = this.#given
      ? pending.length === 1 && pending[0] === this.#last
      : pending.length === 0;
    if (!asGiven) this.retract();
    return asGiven;
  }

  /**
   * Starts a run after the hidden state in the sequence's embed, which guesses so many tokens at a
   * time; nothing is pending.
   *
   * @returns whether there was room for it.
   */
  start(sampler: number, most: number, stops: Iterable<number>, guesses: number): boolean {
    const sequence = this.#sequence;
    const { pages } = sequence;
    const start = sequence.tokens.length;
    const first = Math.floor(start / pages.size);
    if (first < pages.readOnly) return false; // it has to be copied first
    try {
      if (!sequence.spare.length) sequence.spare = [raw.allocEmb(sequence.queue, 1), 1];
      this.#handle = raw.startRun(
        sequence.queue,
        sampler,
        sequence.embed[0],
        start + sequence.shift,
        sequence.spare[0],
        spans(pages.addresses.slice(0, Math.ceil(start / pages.size))),
        spans(pages.addresses.slice(first)),
        sequence.adapter ?? "",
        most,
        stops,
      );
    } catch (error) {
      if (isPieError(error, ...SCARCE)) return false;
      throw error;
    }
    if (guesses) raw.speculate(sequence.queue, this.#handle, sequence.knownTokens(), guesses);
    this.#most = most;
    this.#given = 0;
    sequence.tentative = this;
    return true;
  }

  /** The next token; null if the run was undone meanwhile. */
  async next(): Promise<number | null> {
    if (!this.#came.length && !(await this.#wait(1))) return null;
    const token = this.#came.shift() as number;
    if (this.#given) this.#sequence.ran(1);
    this.#given += 1;
    this.#last = token;
    return token;
  }

  /** All tokens up to the run's end; none if it was undone meanwhile. */
  async rest(): Promise<number[]> {
    if (!(await this.#wait(Math.max(1, this.#most - this.#given - this.#came.length)))) return [];
    const tokens = this.#came.splice(0);
    this.#give(tokens);
    return tokens;
  }

  /**
   * All tokens with their text, which the server reads. If it fails, the sequence is as it was.
   *
   * @param before the tokens before the run's first.
   * @param ends strings that end the run.
   * @param toClient whether the server sends the text to the client.
   */
  async text(before: number[], ends: string[], toClient: boolean): Promise<WholeText> {
    const { queue } = this.#sequence;
    const handle = this.#handle as number;
    try {
      const future = raw.runText(queue, handle, before, ends, [], toClient);
      await ready(future);
      const [text, count] = raw.takeRunText(future);
      if (this.#handle !== handle) {
        throw new Error("the context was changed while its text was being generated");
      }
      const tokens = raw.takeTokens(queue, handle).slice(0, count);
      this.#give(tokens);
      return { tokens, text };
    } catch (error) {
      this.#failed(error);
      throw error;
    }
  }

  /** Log-probabilities of the last tokens that the program was given; null without a run. */
  logprobs(count: number): number[] | null {
    if (this.#handle === null) return null;
    const { queue } = this.#sequence;
    return [...raw.runLogprobs(queue, this.#handle, this.#given - count, count)];
  }

  /** The program is given tokens: all but the last are in the sequence then. */
  #give(tokens: number[]): void {
    const sequence = this.#sequence;
    sequence.ran(this.#given ? 1 : 0);
    sequence.pending = [...tokens.slice(0, -1), ...sequence.pending];
    sequence.ran(tokens.length - 1);
    this.#given += tokens.length;
    this.#last = tokens[tokens.length - 1];
  }

  /** Takes tokens, at least so many or all that come; false if the run was undone. */
  async #wait(count: number): Promise<boolean> {
    const { queue } = this.#sequence;
    const handle = this.#handle as number;
    try {
      const progress = raw.runProgress(queue, handle, count);
      await ready(progress);
      raw.take(progress);
      if (this.#handle !== handle) return false;
      this.#came = [...this.#came, ...raw.takeTokens(queue, handle)];
    } catch (error) {
      this.#failed(error);
      throw error;
    }
    if (this.#came.length) this.#sequence.ran(0);
    return this.#came.length > 0;
  }

  #failed(error: unknown): void {
    this.retract();
    this.#sequence.recover(error);
  }

  /** Ends the run, if there is one: what came after the tokens given is undone. */
  retract(): void {
    const handle = this.#handle;
    if (handle === null) return;
    this.#handle = null;
    const sequence = this.#sequence;
    sequence.tentative = null;
    this.undone = this.#given < this.#most;
    this.#came = [];
    try {
      const taken = addresses(raw.endRun(sequence.queue, handle, this.#given));
      sequence.pages.addresses.push(...taken);
    } catch (error) {
      if (!isPieError(error)) throw error; // gone with a lost worker
    }
  }
}
