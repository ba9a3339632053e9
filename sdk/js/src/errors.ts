/** Errors that the server answers with, and that of wrong arguments. */

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
