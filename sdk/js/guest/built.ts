/** The entry of a component that `pie-py build` has made. */

import { install } from "./globals.ts";
import { runProgram } from "./modules.ts";

install();

/** The export of the world, for a program's compiled modules: evaluated when it runs. */
export function built(modules: [string, string][]): (args: string[]) => Promise<string> {
  return (args) => runProgram(() => [new Map(modules), args]);
}
