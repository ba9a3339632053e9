/**
 * Keys and values of this user that survive the instance and the server.
 *
 * A key is a text, a value is bytes. What has been awaited is on disk. Operations take effect in the
 * order of the calls.
 */

import { isPieError } from "./errors.ts";
import { blobOf, done, textsOf } from "./loop.ts";
import * as raw from "./raw.ts";

const PAGE = 1000;

/** Values by key; null for a key that is, or must be, absent. */
export type Values = Record<string, Uint8Array | null>;

/** A key's value; null if there is no such key. */
export async function get(key: string): Promise<Uint8Array | null> {
  try {
    return await whenRoom(() => blobOf(raw.storeGet(key)));
  } catch (error) {
    if (!isPieError(error, "not-found")) throw error;
    return null;
  }
}

/** Gives a key a value. Throws PieError `limit-exceeded` (value too large, quota). */
export function set(key: string, value: Uint8Array): Promise<void> {
  return whenRoom(() => done(raw.storeSet(key, value)));
}

/** Removes a key; one that is not there is no error. */
function remove(key: string): Promise<void> {
  return whenRoom(() => done(raw.storeDelete(key)));
}
export { remove as delete };

/** Keys that begin with a prefix, in the order of their UTF-8 bytes. */
export async function* keys(prefix = ""): AsyncGenerator<string, void, void> {
  for (let after = ""; ; ) {
    const page = await whenRoom(() => textsOf(raw.storeList(prefix, after, PAGE)));
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
    await whenRoom(() => done(raw.storeCommit(expected, absent, writes, deletes)));
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
  change: (old: Uint8Array | null) => Uint8Array | null,
): Promise<Uint8Array | null> {
  for (;;) {
    const old = await get(key);
    const value = change(old);
    if (await commit({ [key]: value }, { [key]: old })) return value;
  }
}

function parts(values: Values): [[string, Uint8Array][], string[]] {
  const entries = Object.entries(values);
  const present = entries.filter((entry): entry is [string, Uint8Array] => entry[1] !== null);
  return [present, entries.filter(([, value]) => value === null).map(([key]) => key)];
}

/** Runs an operation, after others of this instance if they have too many bytes under way. */
async function whenRoom<T>(start: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await start();
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await done(raw.storeRoom());
  }
}
