/** A program's modules: how they become code, import each other, and run. */

import { transform } from "sucrase";
import * as sdk from "../src/index.ts";
import { didYouMean } from "../src/errors.ts";
import { asJson } from "../src/json.ts";
import { drive } from "../src/loop.ts";
import { begin, describe, Exit } from "./globals.ts";

/** Paths and texts, the main module first. */
export type Modules = Map<string, string>;

const MARK = "\0javascript\0";

/** The modules of a program as it is uploaded: a mark, then a path and a text for each. */
export function unpack(text: string): Modules {
  const parts = text.slice(MARK.length).split("\0");
  const modules: Modules = new Map();
  for (let i = 0; i + 1 < parts.length; i += 2) modules.set(parts[i], parts[i + 1]);
  return modules;
}

/**
 * Modules of today's syntax, or TypeScript, as functions that `require` each other. Lines stay where
 * they are.
 *
 * @throws SyntaxError with the place.
 */
export function compile(modules: Modules): Modules {
  const compiled: Modules = new Map();
  for (const [path, text] of modules) {
    try {
      const typed = path.endsWith(".ts");
      const { code } = transform(text, {
        transforms: typed ? ["imports", "typescript"] : ["imports"],
        disableESTransforms: true,
        preserveDynamicImport: false,
        filePath: path,
      });
      compiled.set(path, code);
    } catch (error) {
      throw new SyntaxError((error as Error).message.replace(/^Error transforming [^:]*: /, `${path}: `));
    }
  }
  return compiled;
}

type Exports = Record<string, unknown>;

/** Names asked of a module by `await`, and by what Sucrase makes of imports. */
const ASKED = ["then", "default", "__esModule"];

/** The SDK. A name that it does not have is an error, where JavaScript would go on with nothing. */
const inferlet = new Proxy(sdk as Exports, {
  get(module, name) {
    if (typeof name === "string" && !(name in module) && !ASKED.includes(name)) {
      throw new SyntaxError(`"inferlet" has no ${name}${didYouMean(name, Object.keys(module))}`);
    }
    return module[name as string];
  },
});

/**
 * Evaluates the main module, and those that it imports.
 *
 * @returns what the main module exports.
 */
export async function evaluate(compiled: Modules): Promise<Exports> {
  const loaded = new Map<string, { exports: Exports }>();
  const main = compiled.keys().next().value as string;

  const load = (path: string): { module: { exports: Exports }; end: Promise<void> | null } => {
    const known = loaded.get(path);
    if (known) return { module: known, end: null };
    const module = { exports: {} as Exports };
    loaded.set(path, module);
    const require = (name: string) => {
      if (name === "inferlet") return inferlet;
      const found = name.startsWith(".") ? resolve(path, name, compiled) : undefined;
      if (found === undefined) throw new Error(`${path}: ${unknownModule(name)}`);
      return load(found).module.exports;
    };
    // Only the main module may `await` outside of functions: those that import another go on at once.
    const kind = path === main ? "async function" : "function";
    const code = `(${kind} (require, module, exports) {${compiled.get(path)}\n})\n//# sourceURL=${path}`;
    const run = (0, eval)(code) as (...args: unknown[]) => Promise<void> | null;
    return { module, end: run(require, module, module.exports) };
  };

  const { module, end } = load(main);
  await end;
  return module.exports;
}

function resolve(from: string, name: string, modules: Modules): string | undefined {
  const parts = from.split("/").slice(0, -1);
  for (const part of name.split("/")) {
    if (part === "..") parts.pop();
    else if (part !== ".") parts.push(part);
  }
  const path = parts.join("/");
  const endings = ["", ".js", ".ts", ".mjs", "/index.js", "/index.ts"];
  const replaced = path.replace(/\.js$/, ".ts"); // as TypeScript has its modules imported
  return [...endings.map((ending) => path + ending), replaced].find((each) => modules.has(each));
}

function unknownModule(name: string): string {
  if (name.startsWith(".")) return `there is no module ${name} beside it`;
  if (/^(node:.*|fs|path|os|child_process|https?|net|url|util|events|stream|worker_threads|readline)(\/|$)/.test(name)) {
    return `an inferlet does not run in Node.js, which has ${name}: no files, network or processes`;
  }
  return (
    `there is no package ${name} in an inferlet that runs from its source, but for "inferlet";` +
    " `pie-py build` puts packages in"
  );
}

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
  const text = asJson(value);
  if (text === undefined) throw new Exit(`main returned a ${typeof value}, which is neither text nor JSON`);
  return text;
}
