/** Text from tokens as they come: whole characters only, and stop strings across token borders. */

const WINDOW = 16; // tokens decoded again for each new one, at the most
const CONTEXT = 6; // tokens decoded before the first new one, so that its leading space is seen
const BROKEN = "\uFFFD";
const LONGEST_CHARACTER = 4; // tokens; a character has four bytes, and each may be a token of its own

/**
 * Turns a stream of tokens into a stream of text.
 *
 * A token may end within a character, and what a token means can depend on the one before it. So the
 * last few tokens are decoded together, and the new part of their text is given out up to its last
 * whole character. What looks broken after that waits, as long as it may become a character.
 */
export class TextDecoder {
  #decode: (tokens: number[]) => string;
  #tokens: number[];
  #given = ""; // text of the window given out
  #held = 0; // newest tokens whose text is not all given out yet

  /** Takes the host's detokenizer and the tokens before the first new one. */
  constructor(decode: (tokens: number[]) => string, before: number[] = []) {
    this.#decode = decode;
    this.#tokens = before.slice();
    if (before.length) this.#shorten();
  }

  /** The text that this token completes; empty while a character is incomplete. */
  feed(token: number): string {
    this.#tokens.push(token);
    this.#held += 1;
    let text = this.#decode(this.#tokens);
    const added = this.#added(text);
    if (!added.endsWith(BROKEN)) {
      this.#held = 0;
      this.#given = text;
      if (this.#tokens.length >= WINDOW) this.#shorten();
      return added;
    }
    const whole = added.replace(/\uFFFD+$/, "").length;
    let broken = added.length - whole;
    if (whole) {
      this.#held = 1; // this token has completed what was held
    } else if (this.#held >= LONGEST_CHARACTER) {
      // Only the last tokens can still become a character. They may be one sign each.
      broken = Math.min(broken, LONGEST_CHARACTER - 1);
    } else {
      return "";
    }
    if (this.#tokens.length >= WINDOW) {
      this.#tokens = this.#tokens.slice(LONGEST_CHARACTER); // leaves what is held
      text = this.#decode(this.#tokens);
    }
    this.#given = text.slice(0, text.length - broken);
    return added.slice(0, added.length - broken);
  }

  /** The text of the tokens that never made a whole character. */
  finish(): string {
    if (!this.#held) return "";
    const text = this.#decode(this.#tokens);
    const added = this.#added(text);
    this.#given = text;
    this.#held = 0;
    return added;
  }

  /** Keeps the last few tokens, from the start of a character on. */
  #shorten(): void {
    let tokens = this.#tokens;
    for (let count = CONTEXT; count < CONTEXT + LONGEST_CHARACTER; count++) {
      tokens = this.#tokens.slice(-count);
      this.#given = this.#decode(tokens);
      if (!this.#given.startsWith(BROKEN)) break;
    }
    this.#tokens = tokens;
  }

  /** The part of the window's text that was not given out. */
  #added(text: string): string {
    let given = this.#given;
    // The tokens before the first new one may have ended within a character, which is whole now.
    while (given.endsWith(BROKEN) && !text.startsWith(given)) given = given.slice(0, -1);
    return text.slice(given.length);
  }
}

/** Finds the first of some strings in a stream of text, and passes on what precedes it. */
export class StopStrings {
  #held = ""; // text that may be the start of a stop string

  constructor(readonly stops: string[]) {
    if (stops.includes("")) throw new RangeError("an empty stop string would stop at once");
  }

  /** The text that is safe to give out, and whether a stop string was found after it. */
  feed(added: string): [string, boolean] {
    const text = this.#held + added;
    const places = this.stops.map((stop) => text.indexOf(stop)).filter((place) => place >= 0);
    if (places.length) {
      this.#held = "";
      return [text.slice(0, Math.min(...places)), true];
    }
    const keep = Math.max(0, ...this.stops.map((stop) => overlap(text, stop)));
    this.#held = text.slice(text.length - keep);
    return [text.slice(0, text.length - keep), false];
  }

  /** The text held back, when nothing more comes. */
  finish(): string {
    const text = this.#held;
    this.#held = "";
    return text;
  }
}

/** Length of the longest end of the text that starts the stop string. */
function overlap(text: string, stop: string): number {
  for (let n = Math.min(text.length, stop.length - 1); n > 0; n--) {
    if (text.endsWith(stop.slice(0, n))) return n;
  }
  return 0;
}
