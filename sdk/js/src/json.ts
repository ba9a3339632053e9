/** JSON of what programs return and send: every reader reads it, in one line, as the Python SDK's. */

import { isBytes } from "./convert.ts";

const ENDS = /[\x85\u2028\u2029]/g; // of lines, to some

/**
 * A value as JSON: bytes are base64, sets are lists, maps objects, errors their texts, and a bigint a
 * number; `undefined` for what is no data, as a function.
 *
 * @throws TypeError if it refers to itself, or a part is a promise or still to be read, which JSON
 * would leave out.
 */
export function asJson(value: unknown): string | undefined {
  return JSON.stringify(value, plain)?.replace(ENDS, (end) => `\\u${end.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function plain(_: string, part: unknown): unknown {
  if (typeof part === "bigint") return (JSON as unknown as { rawJSON(text: string): unknown }).rawJSON(`${part}`);
  if (typeof part !== "object" || part === null) return part;
  const read = part as { next?: unknown; [Symbol.asyncIterator]?: unknown };
  if (typeof read.next === "function" || read[Symbol.asyncIterator]) {
    throw new TypeError("this is no data yet: read it, as by `await generator.collectText()` or `[...iterator]`");
  }
  if (part instanceof Map) return Object.fromEntries(part);
  if (part instanceof Set) return [...part];
  if (part instanceof Error) return String(part);
  if (isBytes(part)) return btoa(Array.from(part, (byte) => String.fromCharCode(byte)).join(""));
  return ArrayBuffer.isView(part) ? Array.from(part as unknown as ArrayLike<number>) : part;
}
