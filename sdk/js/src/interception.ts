/**
 * Placement of contexts' pages while the program waits for something outside (InferCept).
 *
 *     const answer = await interception(context, () => http.get(url), { tool: "search" });
 *     context.fill(await answer.text());
 *
 * The server's policy chooses whether the pages stay, go to its host memory, or are given up, from what
 * the tool has taken before, what else runs, and what moving and recomputing cost. It is asked again
 * while the wait lasts. A program that knows how long it will wait says so (`expectedSeconds`): then the
 * pages are back in time.
 */

import type { Context } from "./context.ts";
import { isPieError } from "./errors.ts";
import { forget, whenReady } from "./loop.ts";
import * as offload from "./offload.ts";
import { spans } from "./pages.ts";
import * as raw from "./raw.ts";
import { UNKNOWN } from "./sequence.ts";

/** Ways to treat a context during a wait. */
export type Choice = "preserve" | "discard" | "swap";

/** Options of a wait. */
export interface InterceptionOptions {
  /** `preserve`, `discard`, `swap`, `min-waste`, `cheapest`; by default the operator's. */
  policy?: string;
  /** Names what is waited for. The durations of waits for one tool are learned together, over all
   * instances of this user. */
  tool?: string;
  /** How long the wait will last, if this program knows. What was learned of the tool counts only if it
   * lasts longer. */
  expectedSeconds?: number;
}

// Pages that can't be moved stay where they are: nothing is lost by that but memory.
const HARMLESS = ["busy", "out-of-resources", "limit-exceeded", "unsupported"];

/**
 * Waits for something during which contexts are not used; afterwards they are as they were.
 *
 * @param contexts whose pages are not needed meanwhile.
 * @param work what is waited for; gets the wait, whose `choices` say what was done with each context.
 * @returns what `work` does.
 */
export async function interception<T>(
  contexts: Context | Context[],
  work: (wait: Interception) => Promise<T>,
  options: InterceptionOptions = {},
): Promise<T> {
  const wait = new Interception(Array.isArray(contexts) ? contexts : [contexts], options);
  let finished = false;
  try {
    const result = await work(wait);
    finished = true;
    return result;
  } finally {
    await wait.end(finished);
  }
}

/** A wait under way. */
export class Interception {
  #absences: Absence[];
  #options: InterceptionOptions;
  #started = raw.monotonicNow();
  #timers = new Set<number>(); // futures of the host
  #failed: unknown[] = [];

  /** @internal */
  constructor(contexts: Context[], options: InterceptionOptions) {
    this.#options = options;
    this.#absences = contexts.map((context) => new Absence(context, options));
    for (const absence of this.#absences) this.#watch(absence, absence.ask(0));
  }

  /** The choice for each context so far. */
  get choices(): Choice[] {
    return this.#absences.map((absence) => absence.choice);
  }

  /** Ends the wait: the contexts can be used again. */
  async end(finished: boolean): Promise<void> {
    const lasted = raw.monotonicNow() - this.#started;
    for (const future of this.#timers) forget(future);
    const { tool = "", expectedSeconds } = this.#options;
    if (finished && expectedSeconds === undefined) raw.noteWait(tool, lasted);
    for (const absence of this.#absences) await absence.end();
    if (this.#failed.length) throw this.#failed[0];
  }

  /** Asks again, as long as something can still be done; and brings the pages back in time. */
  #watch(absence: Absence, again: number | null): void {
    const due = absence.due(this.#elapsed());
    if (due !== null && (again === null || due <= again)) {
      this.#later(due, () => absence.end());
    } else if (again !== null) {
      this.#later(again, async () => this.#watch(absence, absence.ask(this.#elapsed())));
    }
  }

  #later(seconds: number, work: () => Promise<void>): void {
    const future = raw.sleep(Math.max(0, Math.round(seconds * 1e9)));
    this.#timers.add(future);
    whenReady(future, () => {
      this.#timers.delete(future);
      raw.take(future);
      work().catch((error) => this.#failed.push(error));
    });
  }

  /** Seconds since it began. */
  #elapsed(): number {
    return Number(raw.monotonicNow() - this.#started) / 1e9;
  }
}

/** One context during a wait. */
class Absence {
  choice: Choice = "preserve";
  #context: Context;
  #facts: Record<string, string | number>;
  #expected: number | undefined;
  #left: number[] | null = null; // pages of its own that are still in the pool
  #chunk = 0; // tokens to compute at once afterwards
  #restore = 0; // seconds until the context is back
  #end: Promise<void> | null = null;

  constructor(context: Context, { policy = "", tool = "", expectedSeconds }: InterceptionOptions) {
    this.#context = context;
    this.#expected = expectedSeconds;
    this.#facts = { tool, policy };
    if (expectedSeconds !== undefined) {
      this.#facts.expected_ns = Math.max(0, Math.round(1e9 * expectedSeconds));
    }
  }

  /** Does what the policy says; returns after how many seconds to ask again, if at all. */
  ask(elapsed: number): number | null {
    const { queue, sequence } = this.#context;
    // It was wrong: what leaves from now on stays away to the end.
    if (this.#expected !== undefined && elapsed >= this.#expected) this.#expected = undefined;
    if (this.#left === null) {
      sequence.settle();
      this.#left = sequence.pages.unshared();
    }
    const left = this.#left;
    try {
      const advice = JSON.parse(raw.advise(queue, spans(left), this.#wait(elapsed)));
      if (advice.choice === "discard" && this.choice === "preserve") {
        offload.discard(this.#context);
        this.choice = "discard";
        this.#chunk = advice.chunk;
        this.#restore = advice.restore;
        return null;
      }
      if (advice.choice === "swap" && advice.pages > 0) this.#swap(advice.pages, advice.restore);
      return left.length ? advice.seconds : null;
    } catch (error) {
      if (!isPieError(error, ...HARMLESS)) throw error;
      return null;
    }
  }

  /** The last pages first: those before them may be what others share. */
  #swap(count: number, restore: number): void {
    const left = this.#left as number[];
    raw.swapOut(this.#context.queue, spans(left.slice(-count)));
    this.choice = "swap";
    this.#restore += (restore * count) / left.length;
    left.splice(-count);
  }

  #wait(elapsed: number): string {
    // A context that has begun to go to the host goes on that way.
    const known = !this.#context.sequence.tokens.includes(UNKNOWN);
    const facts = { elapsed_ns: Math.round(elapsed * 1e9), can_discard: known && this.choice === "preserve" };
    return JSON.stringify({ ...this.#facts, ...facts });
  }

  /** Seconds until the context should be brought back; null if it is there, or the time is not known. */
  due(elapsed: number): number | null {
    if (this.#expected === undefined || this.choice === "preserve") return null;
    return Math.max(0, this.#expected - elapsed - this.#restore);
  }

  /** Makes the context usable again. */
  end(): Promise<void> {
    this.#end ??= this.#bringBack();
    return this.#end;
  }

  async #bringBack(): Promise<void> {
    const { sequence } = this.#context;
    if (this.choice === "swap") offload.swapIn(this.#context);
    if (this.choice !== "discard") return;
    // In chunks that leave the running batch its share of the device. The last one goes with whatever
    // comes next.
    while (sequence.pending.length > this.#chunk) {
      sequence.forward(sequence.pending.slice(0, this.#chunk), false);
      sequence.pending = sequence.pending.slice(this.#chunk);
      await sequence.synchronize();
    }
  }
}
