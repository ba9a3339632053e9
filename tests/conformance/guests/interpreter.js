// Performs the contract's functions as its client tells it; see `tests/conformance/README.md`.
//
// The same program as `interpreter.py`. Its arguments say what it is: `serve` calls, `return TEXT` or
// `fail TEXT`.

import { PieError, raw } from "inferlet";

class NoValue extends Error {}

export function main(args) {
  const [mode, ...rest] = args.length ? args : ["serve"];
  if (mode === "return") return rest.join(" ");
  if (mode === "fail") throw new Error(rest.join(" "));
  for (;;) {
    const future = raw.receive();
    while (!raw.wait([future]).length);
    const text = raw.takeText(future);
    if (!text) return "done";
    raw.send(JSON.stringify(perform(JSON.parse(text))));
  }
}

/** Performs calls, `[function, arguments]` each; what came of each. */
function perform(calls) {
  const outcomes = [];
  for (const [name, args] of calls) {
    try {
      const values = args.map((argument) => resolve(argument, outcomes));
      const camel = name.replace(/-([a-z])/g, (_, letter) => letter.toUpperCase());
      outcomes.push({ ok: plain(raw[camel](...values)) ?? null });
    } catch (error) {
      if (!(error instanceof PieError || error instanceof NoValue)) throw error;
      outcomes.push({ error: error.message });
    }
  }
  return outcomes;
}

/** An argument as the SDK wants it: references become what earlier calls returned. */
function resolve(argument, outcomes) {
  if (Array.isArray(argument)) return argument.map((item) => resolve(item, outcomes));
  if (typeof argument !== "object" || argument === null) return argument;
  if ("bytes" in argument) return Uint8Array.from(argument.bytes);
  if ("repeat" in argument) return repeated(resolve(argument.repeat, outcomes), argument.times);
  if ("tuple" in argument) return argument.tuple.map((item) => resolve(item, outcomes));
  const outcome = outcomes[argument.of];
  if (!("ok" in outcome)) {
    throw new NoValue(`no-value: call ${argument.of} failed: ${outcome.error}`);
  }
  const value = argument.at.reduce((inner, index) => inner[index], outcome.ok);
  return argument.add ? value + argument.add : value;
}

function repeated(value, times) {
  if (typeof value === "string") return value.repeat(times);
  if (value instanceof Uint8Array) return new Uint8Array(value.length * times).fill(value[0]);
  return Array.from({ length: times }, () => value[0]);
}

/** A result as JSON has it. */
function plain(value) {
  if (typeof value === "bigint") return Number(value);
  if (value instanceof Uint8Array) return [...value];
  return Array.isArray(value) ? value.map(plain) : value;
}
