/**
 * Globals that programs expect of a JavaScript engine and a sandbox does not have: clocks, timers,
 * randomness and a console, from the server.
 */

import { didYouMean } from "../src/errors.ts";
import * as sdk from "../src/index.ts";
import { asJson } from "../src/json.ts";
import { forget, whenReady } from "../src/loop.ts";
import * as raw from "../src/raw.ts";

const NS_PER_MS = 1_000_000;
const RealDate = Date;

function now(): number {
  return Math.floor(Number(raw.now()) / NS_PER_MS);
}

function HostDate(this: unknown, ...args: unknown[]): unknown {
  if (new.target === undefined) return new RealDate(now()).toString();
  const made = args.length === 0 ? [now()] : args;
  return Reflect.construct(RealDate, made, new.target === HostDate ? RealDate : new.target);
}
HostDate.prototype = RealDate.prototype;
HostDate.now = now;
HostDate.parse = RealDate.parse;
HostDate.UTC = RealDate.UTC;

let started = 0n;

function performanceNow(): number {
  return Number(raw.monotonicNow() - started) / NS_PER_MS;
}

// Timers

const timers = new Map<number, number>(); // futures of the host, by the timer's number
let lastTimer = 0;

function timer(again: boolean) {
  return (call: (...args: unknown[]) => void, ms: number, ...args: unknown[]) => {
    const number = ++lastTimer;
    const start = () => {
      const future = raw.sleep(Math.max(0, Math.round((Number(ms) || 0) * NS_PER_MS)));
      timers.set(number, future);
      whenReady(future, () => {
        raw.take(future);
        timers.delete(number);
        if (again) start();
        call(...args);
      });
    };
    start();
    return number;
  };
}

function clearTimer(number: number): void {
  const future = timers.get(number);
  if (future !== undefined) forget(future);
  timers.delete(number);
}

// Randomness

const LOT = 1024; // numbers of 32 bits that are asked for at once
let lot: DataView | null = null;
let used = LOT;

function next(): number {
  if (lot === null || used === LOT) {
    lot = new DataView(raw.randomBytes(4 * LOT).slice().buffer);
    used = 0;
  }
  return lot.getUint32(4 * used++);
}

/** A number of 53 random bits, at least 0 and less than 1. */
function random(): number {
  return ((next() >>> 5) * 2 ** 26 + (next() >>> 6)) / 2 ** 53;
}

function getRandomValues<T extends ArrayBufferView>(view: T): T {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  for (let at = 0; at < bytes.length; at += 65536) {
    bytes.set(raw.randomBytes(Math.min(65536, bytes.length - at)), at);
  }
  return view;
}

function randomUUID(): string {
  const bytes = raw.randomBytes(16);
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

// What would go wrong without a word

function fetch(): never {
  throw new TypeError(
    'an inferlet has no network of its own: `http.get(url)` of "inferlet" asks the server, which' +
      " answers for the addresses that its operator allows",
  );
}

function notAwaited(): never {
  throw new TypeError("a promise is used as a text or number: write `await` before the call");
}

function noData(this: unknown): never {
  if (this instanceof Promise) throw new TypeError("a promise is no data: write `await` before the call");
  const what = this instanceof sdk.Context ? "context" : "model";
  throw new TypeError(`a ${what} is no data: give its text, name or numbers`);
}

// The console: lines of the instance's log

function shown(value: unknown): string {
  if (value instanceof Error) return describe(value);
  if (value instanceof Promise) return "[promise: write `await` before the call]";
  if (typeof value === "bigint") return `${value}n`;
  for (const text of [typeof value === "object" ? asJson : String, String]) {
    try {
      return text(value) as string;
    } catch {} // it holds itself, or throws when it is read
  }
  return "[an object that cannot be shown]";
}

function logger(level: raw.LogLevel): (...values: unknown[]) => void {
  return (...values) => {
    for (const line of values.map(shown).join(" ").split("\n")) {
      raw.log(level, line.slice(0, 1 << 16).toWellFormed()); // see `runtime.log`
    }
  };
}

const [times, counts] = [new Map<string, number>(), new Map<string, number>()];

/** The console; the engine's own has no clock, and its lines go nowhere. */
function consoleMethods(): object {
  const [debug, info, warning, error] = (["debug", "info", "warning", "error"] as const).map(logger);
  const one = (value: unknown) => info(value);
  const timeLog = (label = "default", ...more: unknown[]) =>
    info(`${label}: ${(performanceNow() - (times.get(label) ?? performanceNow())).toFixed(3)} ms`, ...more);
  return {
    debug, trace: debug, log: info, info, group: info, groupCollapsed: info, dir: one, table: one, warn: warning, error,
    assert: (holds: unknown, ...values: unknown[]) => holds || error("assertion failed", ...values),
    count(label = "default") {
      counts.set(label, (counts.get(label) ?? 0) + 1);
      info(`${label}: ${counts.get(label)}`);
    },
    countReset: (label = "default") => counts.delete(label),
    time: (label = "default") => times.set(label, performanceNow()),
    timeLog,
    timeEnd(label = "default") {
      timeLog(label);
      times.delete(label);
    },
  };
}

/** Puts all of it in place; before the program is evaluated. */
export function install(): void {
  Object.assign(globalThis, {
    Date: HostDate,
    setTimeout: timer(false),
    setInterval: timer(true),
    clearTimeout: clearTimer,
    clearInterval: clearTimer,
    fetch,
  });
  for (const name of [Symbol.toPrimitive, "toString"]) {
    Object.defineProperty(Promise.prototype, name, { value: notAwaited });
  }
  for (const name of ["tokens", "probabilities"]) {
    Object.defineProperty(Promise.prototype, name, { get: notAwaited }); // of a distribution
  }
  for (const kind of [Promise, sdk.Context, sdk.Model]) {
    Object.defineProperty(kind.prototype, "toJSON", { value: noData });
  }
  RealDate.prototype.constructor = HostDate as unknown as DateConstructor;
  Math.random = random;
  Object.defineProperty(globalThis, "performance", { value: { now: performanceNow } });
  Object.defineProperty(globalThis, "crypto", { value: { getRandomValues, randomUUID } });
  Object.assign(console, consoleMethods());
}

/** The clock of an instance. */
export function begin(): void {
  started = raw.monotonicNow();
}

/** The program's end with a text for its user, without a trace. */
export class Exit extends Error {}

/** An error with the lines of the program's own modules that led to it, and with its causes. */
export function describe(error: unknown): string {
  const chain: unknown[] = [];
  try {
    for (let each = error; each !== undefined && !chain.includes(each); each = (each as Error | null)?.cause) {
      chain.push(each);
    }
    return (chain.length ? chain : [error]).map(described).join("\ncaused by ");
  } catch {
    return "thrown: an object that cannot be shown";
  }
}

function described(error: unknown): string {
  if (error instanceof Exit) return error.message;
  if (!(error instanceof Error)) return `thrown: ${shown(error)}`;
  if (error.name === "UsageError") return `usage: ${error.message}`;
  const all = error instanceof AggregateError ? error.errors.map((each) => `of which ${describe(each)}`) : [];
  return [`${error.name}: ${error.message}${hint(error)}`, ...frames(error.stack ?? ""), ...all].join("\n");
}

const LATER = ": if it is a promise, write `await` before the call; `for await` reads a generation";
const ELSEWHERE =
  /^(process|require|window|document|Buffer|Worker|alert|prompt|localStorage|XMLHttpRequest|WebSocket|__\w+) /;

/** A hint beside an engine's message. */
function hint({ name, message }: Error): string {
  const method = /\.(\w+) is not a function$/.exec(message);
  if (name === "TypeError" && method) {
    const meant = didYouMean(method[1], methods());
    if (!meant && (method[1] in String.prototype || method[1] in Array.prototype)) return LATER;
    return meant;
  }
  if (name === "TypeError" && message.endsWith(" is not iterable")) return LATER;
  if (message.endsWith("is no queue of this instance")) return "; has its context been released?";
  if (name === "ReferenceError" && ELSEWHERE.test(message)) {
    return ": an inferlet runs neither in Node.js nor in a browser; main gets the arguments";
  }
  return "";
}

/** Names of what the SDK's objects can do. */
function methods(): string[] {
  const classes = Object.values(sdk).filter((each) => typeof each === "function" && each.prototype);
  const names = classes.flatMap((each) => Object.getOwnPropertyNames((each as Function).prototype));
  return names.filter((name) => name !== "constructor");
}

/** SpiderMonkey writes a frame as `name@file:line:column`; the SDK's own are left out. */
function frames(stack: string): string[] {
  return stack
    .split("\n")
    .map((line) => /^(.*)@(.+?):(\d+):\d+$/.exec(line))
    .filter((found) => found !== null && !/(^|\/)(inferlet_sdk|initializer)\.js$/.test(found[2]))
    .map((found) => `    at ${named(found![1])}${found![2]}:${found![3]}`);
}

function named(name: string): string {
  const plain = name.replace(/^(async\*|promise callback\*)/, "").replace(/[/<]+$/, "");
  return plain === "" || plain === "anonymous" ? "" : `${plain}, `;
}
