/**
 * Promises on the host's `wait`.
 *
 * A host call suspends the whole inferlet until it returns. So a program that awaits a future only
 * notes it here; when none of its promises can go on, the inferlet waits in the host for all futures
 * that it has noted, at once. That is how branches of a program run together.
 */

import * as raw from "./raw.ts";

const waiting = new Map<number, () => void>(); // what goes on, by the host's future

/** Waits for a future of the host; other branches of the program run meanwhile. */
export function ready(future: number): Promise<void> {
  return new Promise((resolve) => {
    waiting.set(future, resolve);
  });
}

/** Forgets a future and cancels it: nothing that awaits it goes on. */
export function forget(future: number): void {
  if (waiting.delete(future)) raw.cancel(future);
}

/** Calls back when a future of the host is ready. */
export function whenReady(future: number, call: () => void): void {
  waiting.set(future, call);
}

/**
 * Runs until a promise is settled, and returns its value. The component's entry calls it, once.
 *
 * @throws what the promise is rejected with; an Error if all of the program waits for what nothing
 *   can bring.
 */
export async function drive<T>(main: Promise<T>): Promise<T> {
  let settled = false;
  const settle = () => {
    settled = true;
  };
  main.then(settle, settle);
  for (;;) {
    await idle();
    if (settled) return main;
    if (waiting.size === 0) {
      throw new Error("deadlock: the program awaits what nothing can bring; did a promise get lost?");
    }
    for (const future of raw.wait(waiting.keys())) {
      const goOn = waiting.get(future);
      waiting.delete(future);
      goOn?.();
    }
  }
}

/**
 * Resolves when no promise of the program can go on.
 *
 * The engine runs all reactions of promises before it takes the next task of its event loop, and the
 * one kind of task that it makes without an operating system is the reading of a blob's stream.
 */
async function idle(): Promise<void> {
  await new Blob(["."]).stream().getReader().read();
}

/** The results of all branches, in their order: promises, mostly of generations on forks. */
export function gather<T>(...branches: Promise<T>[]): Promise<T[]> {
  return Promise.all(branches);
}

/**
 * The first good result; null if none was good. The other branches go on, unless their contexts are
 * released.
 *
 * @param good whether a result will do.
 */
export function race<T>(branches: Promise<T>[], good: (result: T) => boolean = () => true): Promise<T | null> {
  return new Promise((resolve, reject) => {
    const all = branches.map((branch) =>
      branch.then((result) => {
        if (good(result)) resolve(result);
      }),
    );
    Promise.all(all).then(() => resolve(null), reject);
  });
}
