/** Errors that the server answers with, that of wrong arguments, and names that were misspelt. */

/**
 * An error that the server answered, `code: message`.
 *
 * `code` is one of the contract's stable codes (`out-of-resources`, `not-found`, ...), so that a
 * program can tell them apart; `detail` says what was wrong and how to mend it.
 */
export class PieError extends Error {
  override name = "PieError";
  readonly code: string;
  readonly detail: string;

  constructor(text: string) {
    super(text);
    const colon = text.indexOf(": ");
    this.code = colon < 0 ? "internal" : text.slice(0, colon);
    this.detail = colon < 0 ? text : text.slice(colon + 2);
  }
}

/** True if an error is the server's, with one of some codes. */
export function isPieError(error: unknown, ...codes: string[]): error is PieError {
  return error instanceof PieError && (codes.length === 0 || codes.includes(error.code));
}

/** Arguments that make no sense: ends the program with `usage: MESSAGE`. */
export class UsageError extends Error {
  override name = "UsageError";
}

/** `; did you mean X?` for the nearest of the names that are there, or nothing. */
export function didYouMean(name: string, names: Iterable<string>): string {
  const most = Math.max(1, Math.floor(name.length / 3));
  const found = [...new Set(names)]
    .map((each) => ({ each, far: distance(name.toLowerCase(), each.toLowerCase()) }))
    .filter(({ far }) => far <= most)
    .sort((one, other) => one.far - other.far);
  return found.length ? `; did you mean ${found[0].each}?` : "";
}

/**
 * The options that are given, without those that are null: these have their defaults, as with None in
 * Python. Refuses options that there are not: JavaScript passes over them.
 *
 * @throws TypeError that names the one that may have been meant.
 */
export function checkOptions<O extends object>(
  what: string,
  given: O | null,
  names: readonly (keyof O & string)[],
): O {
  if (typeof given !== "object") throw new TypeError(`${what} takes its options as an object, not as ${given}`);
  for (const name of Object.keys(given ?? {})) {
    if ((names as readonly string[]).includes(name)) continue;
    throw new TypeError(`${what} has no option ${name}${didYouMean(name, names)}`);
  }
  return Object.fromEntries(Object.entries(given ?? {}).filter(([, value]) => value !== null)) as O;
}

/** Levenshtein's: letters to put in, take out or replace. */
function distance(one: string, other: string): number {
  let above = Array.from({ length: other.length + 1 }, (_, column) => column);
  for (let row = 1; row <= one.length; row++) {
    const line = [row];
    for (let column = 1; column <= other.length; column++) {
      const same = one[row - 1] === other[column - 1] ? 0 : 1;
      line.push(Math.min(above[column] + 1, line[column - 1] + 1, above[column - 1] + same));
    }
    above = line;
  }
  return above[other.length];
}
