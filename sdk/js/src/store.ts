/**
 * Keys and values of this user that survive the instance and the server.
 *
 * A key is a text, a value is bytes; a text is kept as its bytes in UTF-8. What has been awaited is on
 * disk. Operations take effect in the order of the calls.
 */

import { storeCommit, storeGet, storeList, storeSet } from "./awaited.ts";
import { asText, isBytes } from "./convert.ts";
import { isPieError } from "./errors.ts";

const PAGE = 1000;

/** Values by key; null for a key that is, or must be, absent. */
export type Values = Record<string, Uint8Array | string | null>;

/** A key's value; null if there is no such key. */
export async function get(key: string): Promise<Uint8Array | null> {
  try {
    return await storeGet(key);
  } catch (error) {
    if (!isPieError(error, "not-found")) throw error;
    return null;
  }
}

/** As `get`, the value as text. */
export async function getText(key: string): Promise<string | null> {
  const value = await get(key);
  return value && new TextDecoder("utf-8", { fatal: true }).decode(value);
}

/** Sets a key's value, new or instead of its old one. */
export function set(key: string, value: Uint8Array | string): Promise<void> {
  return storeSet(key, bytes(value));
}

export { storeDelete as delete } from "./awaited.ts";

/** Keys that begin with a prefix, in the order of their UTF-8 bytes. */
export async function* keys(prefix = ""): AsyncGenerator<string, void, void> {
  for (let after = ""; ; ) {
    const page = await storeList(prefix, after, PAGE);
    yield* page;
    if (page.length < PAGE) return;
    after = page[page.length - 1];
  }
}

/**
 * Changes several keys at once, if others have the values they are expected to have.
 *
 * @returns whether it was done. False means that an expectation does not hold; nothing has changed.
 */
export async function commit(changes: Values, expect: Values = {}): Promise<boolean> {
  const [expected, absent] = parts(expect);
  const [writes, deletes] = parts(changes);
  try {
    await storeCommit(expected, absent, writes, deletes);
  } catch (error) {
    if (!isPieError(error, "conflict")) throw error;
    return false;
  }
  return true;
}

/**
 * Derives a key's value from its old one, atomically.
 *
 * @param change gets the value, null if there is none, and returns the new one, null to remove it. It
 *   is called again after a concurrent change.
 */
export async function update(
  key: string,
  change: (old: Uint8Array | null) => Uint8Array | string | null,
): Promise<Uint8Array | null> {
  for (;;) {
    const old = await get(key);
    const value = change(old);
    if (await commit({ [key]: value }, { [key]: old })) return value === null ? null : bytes(value);
  }
}

function parts(values: Values): [[string, Uint8Array][], string[]] {
  const present: [string, Uint8Array][] = [];
  const absent: string[] = [];
  for (const [key, value] of Object.entries(values)) {
    if (value === null) absent.push(key);
    else present.push([key, bytes(value)]);
  }
  return [present, absent];
}

function bytes(value: Uint8Array | string): Uint8Array {
  if (typeof value === "string") return new TextEncoder().encode(asText(value));
  if (!isBytes(value)) throw new TypeError(`a value is text or a Uint8Array, not ${typeof value}: JSON.stringify makes text`);
  return value;
}
