/**
 * Arguments as the bindings take them, and results as programs want them.
 *
 * The bindings take any value for a number or a text, and make something of it; so each is looked at
 * before.
 */

import { PieError } from "./errors.ts";

const U32 = 2 ** 32;
const MOST_ITEMS = 2_750_000; // of a list: the engine ends an instance that passes 2 796 202 in a call

export function asBool(value: boolean): boolean {
  if (typeof value !== "boolean") throw new TypeError(`true or false is wanted, not ${shown(value)}`);
  return value;
}

export function asU32(value: number): number {
  if (typeof value !== "number") throw new TypeError(`a number is wanted, not ${shown(value)}`);
  if (!Number.isInteger(value) || value < 0 || value >= U32) {
    throw new RangeError(`${value} is no integer within 0 to ${U32 - 1}`);
  }
  return value;
}

export function asInteger(value: bigint | number, lowest: bigint, end: bigint): bigint {
  if (typeof value !== "bigint" && typeof value !== "number") {
    throw new TypeError(`a number is wanted, not ${shown(value)}`);
  }
  const integer = BigInt(value); // RangeError for a number with a fraction
  if (integer < lowest || integer >= end) {
    throw new RangeError(`${integer} is not within ${lowest} to ${end - 1n}`);
  }
  return integer;
}

export function asU32s(values: Iterable<number>): Uint32Array {
  if (values instanceof Uint32Array) return bounded(values);
  const list = bounded(Array.isArray(values) ? values : listed(values, "numbers"));
  const made = new Uint32Array(list.length);
  for (let i = 0; i < list.length; i++) made[i] = asU32(list[i]);
  return made;
}

export function asText(value: string): string {
  if (typeof value !== "string") throw new TypeError(`text is wanted, not ${shown(value)}`);
  if (!value.isWellFormed()) throw new TypeError("the text has a lone surrogate, which is no character");
  return value;
}

export function asTexts(values: Iterable<string>): string[] {
  return listed(values, "texts").map(asText);
}

export function asBytes(value: Uint8Array): Uint8Array {
  if (!isBytes(value)) {
    throw new TypeError(`a Uint8Array is wanted, not ${shown(value)}`);
  }
  return bounded(value);
}

function bounded<T extends ArrayLike<number>>(list: T): T {
  if (list.length <= MOST_ITEMS) return list;
  throw new PieError(`limit-exceeded: a list of ${list.length} elements; ${MOST_ITEMS} at most`);
}

export function asCase<T extends string>(value: T, cases: T[]): T {
  if (!cases.includes(value)) throw new RangeError(`${shown(value)} is none of ${cases.join(", ")}`);
  return value;
}

/** An error of the bindings as the SDK throws it: a refusal of the server as `PieError`. */
export function called(error: unknown): unknown {
  const payload = (error as { payload?: unknown }).payload;
  return typeof payload === "string" ? new PieError(payload) : error;
}

/**
 * A result with lists where the bindings have typed arrays; bytes are a Uint8Array of the program's
 * own: the bindings live in a realm apart, whose lists and arrays are no instances of `Array`.
 */
export function plain(value: unknown): unknown {
  if (Array.isArray(value)) return Array.from(value, plain);
  if (!ArrayBuffer.isView(value)) return value;
  const numbers = value as unknown as ArrayLike<number>;
  return isBytes(value) ? new Uint8Array(numbers) : Array.from(numbers);
}

/** True for a Uint8Array, also of another realm. */
export function isBytes(value: unknown): value is Uint8Array {
  return Object.prototype.toString.call(value) === "[object Uint8Array]";
}

function listed<T>(values: Iterable<T>, of: string): T[] {
  if (typeof values === "string" || typeof values?.[Symbol.iterator] !== "function") {
    throw new TypeError(`a list of ${of} is wanted, not ${shown(values)}`);
  }
  return [...values];
}

function shown(value: unknown): string {
  return value === null ? "null" : Array.isArray(value) ? "a list" : typeof value;
}
