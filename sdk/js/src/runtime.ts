/** The server and this instance: names, clocks, random bytes, children. */

import * as awaited from "./awaited.ts";
import * as raw from "./raw.ts";

export {
  availableModels as models,
  checkpoint,
  getArg as args,
  instanceId,
  lastCheckpoint,
  user as username,
  version,
} from "./raw.ts";

/** Waits so many seconds; other branches run meanwhile. */
export function sleep(seconds: number): Promise<void> {
  return awaited.sleep(Math.max(0, Math.round(seconds * 1e9)));
}

/** Seconds since the Unix epoch. */
export function now(): number {
  return Number(raw.now()) / 1e9;
}

/** Seconds of a clock that never goes back, from an arbitrary start. */
export function monotonic(): number {
  return Number(raw.monotonicNow()) / 1e9;
}

/** Random bytes fit for cryptography. */
export function randomBytes(count: number): Uint8Array {
  return crypto.getRandomValues(new Uint8Array(count));
}

/** Writes a line to the instance's log, which `pie-py logs` shows. `console.log` does the same. */
export function log(message: unknown, level: raw.LogLevel = "info"): void {
  // A log keeps less, and a text of over 8 MiB would be a trap. The cut may halve a character.
  raw.log(level, String(message).slice(0, 1 << 16).toWellFormed());
}

/**
 * Runs a child instance of an uploaded program to its end and returns its result.
 *
 * @param program its name or content hash.
 * @throws PieError `not-found`; `limit-exceeded`; `failed-dependency` if the child failed, with the
 *   child's own error text as its message; `cancelled` if the child was killed.
 */
export function launch(program: string, ...args: string[]): Promise<string> {
  return awaited.launch(program, args);
}
