/** Errors as texts for the program's user. */

import * as sdk from "../src/index.ts";
import { didYouMean } from "../src/near.ts";

/** The program's end with a text for its user, without a trace. */
export class Exit extends Error {}

/** An error with the lines of the program's own modules that led to it. */
export function describe(error: unknown): string {
  if (error instanceof Exit) return error.message;
  if (!(error instanceof Error)) return `thrown: ${String(error)}`;
  if (error.name === "UsageError") return `usage: ${error.message}`;
  const cause = error.cause === undefined ? [] : [`caused by ${describe(error.cause)}`];
  return [`${error.name}: ${error.message}${hint(error)}`, ...frames(error.stack ?? ""), ...cause].join("\n");
}

/** A hint beside an engine's message. */
function hint({ name, message }: Error): string {
  const method = /\.(\w+) is not a function$/.exec(message);
  if (name === "TypeError" && method) return didYouMean(method[1], methods());
  if (name === "ReferenceError" && /^(process|require|window|document|Buffer) /.test(message)) {
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
