/** The options of a program, from its arguments. */

import { didYouMean, UsageError } from "./errors.ts";

/** An option's type, and its value if it is not given. */
export interface Option<T> {
  type: (value: string) => T;
  default?: T;
  help?: string;
}

type Value<O> = O extends { type: (value: string) => infer T } ? T : never;

/**
 * Reads `--prompt TEXT --max-tokens 5 --quiet` as `{ prompt, maxTokens, quiet }`.
 *
 *     const { prompt, maxTokens } = parseArgs(args, {
 *       prompt: { type: String, help: "the text to go on from" },
 *       maxTokens: { type: Number, default: 64 },
 *       quiet: { type: Boolean, default: false },
 *     });
 *
 * An option without a default is required. One of type `Boolean` takes no value.
 *
 * @throws UsageError, which ends the program with a line that names the mistake; also for `--help`.
 */
export function parseArgs<O extends Record<string, Option<any>>>(
  args: string[],
  options: O,
): { [name in keyof O]: Value<O[name]> } {
  const given: Record<string, unknown> = {};
  const names = new Map(Object.keys(options).map((name) => [flag(name), name]));
  for (let i = 0; i < args.length; i++) {
    const [word, inline] = split(args[i]);
    const name = names.get(word);
    if (word === "--help") throw new UsageError(usage(options));
    if (name === undefined) {
      const meant = didYouMean(word, names.keys());
      throw new UsageError(`there is no option ${args[i]}${meant}\n${usage(options)}`);
    }
    const { type } = options[name];
    if ((type as unknown) === Boolean) {
      if (inline !== undefined) throw new UsageError(`${word} takes no value`);
      given[name] = true;
      continue;
    }
    const value = inline ?? args[++i];
    if (value === undefined) throw new UsageError(`${word} wants a value`);
    given[name] = type(value);
    const isEmpty = (type as unknown) === Number && !value.trim(); // which reads as 0
    if (isEmpty || Number.isNaN(given[name])) throw new UsageError(`${word} wants a number, not ${value}`);
  }
  for (const [name, option] of Object.entries(options)) {
    if (name in given) continue;
    if (!("default" in option)) throw new UsageError(`${flag(name)} is missing\n${usage(options)}`);
    given[name] = option.default;
  }
  return given as { [name in keyof O]: Value<O[name]> };
}

function split(word: string): [string, string | undefined] {
  const equals = word.indexOf("=");
  return equals < 0 ? [word, undefined] : [word.slice(0, equals), word.slice(equals + 1)];
}

function flag(name: string): string {
  return `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

function usage(options: Record<string, Option<any>>): string {
  const lines = Object.entries(options).map(([name, { type, help = "", ...rest }]) => {
    const value = (type as unknown) === Boolean ? "" : ` ${type.name.toUpperCase()}`;
    const otherwise = rest.default === undefined ? "" : ` (default: ${rest.default})`;
    return `  ${flag(name)}${value}  ${help}${otherwise}`.trimEnd();
  });
  return ["options:", ...lines].join("\n");
}
