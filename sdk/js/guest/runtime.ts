/** The JavaScript runtime: runs the source that the server gives it. */

import { keep, read } from "pie:inferlet/source@0.1.0";
import { install } from "./globals.ts";
import { compile, type Modules, runProgram, unpack } from "./modules.ts";

install();

/** The export of the world; see the contract. */
export function run(): Promise<string> {
  return runProgram(() => {
    const [, text, kept, args] = read() as [string, string, string, string[]];
    if (kept) return [unpack(kept), args];
    const compiled = compile(unpack(text));
    keep(packed(compiled));
    return [compiled, args];
  });
}

function packed(modules: Modules): string {
  return ["", "javascript", ...[...modules].flat()].join("\0");
}
