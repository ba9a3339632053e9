/** Runs a program, and turns what becomes of it into a result or an error text. */

import { drive } from "../src/loop.ts";
import { begin, describe, Exit } from "./globals.ts";
import { evaluate, type Modules } from "./modules.ts";

/**
 * Evaluates a program's modules and calls its `main` with the arguments.
 *
 * @throws a text: what `run` of the contract fails with.
 */
export async function runProgram(load: () => [Modules, string[]]): Promise<string> {
  try {
    begin();
    return asText(await drive(start(...load())));
  } catch (error) {
    throw describe(error).toWellFormed();
  }
}

async function start(modules: Modules, args: string[]): Promise<unknown> {
  const exports = await evaluate(modules);
  const main = exports.main ?? exports.default;
  if (typeof main !== "function") {
    const [file] = modules.keys();
    throw new Exit(`${file} exports no function \`main\`; write \`export async function main(args) {\``);
  }
  return main(args);
}

/** A result as text: nothing, a string as it is, anything else as JSON. */
function asText(value: unknown): string {
  if (value === undefined || value === null) return "";
  if (typeof value === "string") return value.toWellFormed();
  const text = JSON.stringify(value);
  if (text === undefined) throw new Exit(`main returned a ${typeof value}, which is neither text nor JSON`);
  return text;
}
