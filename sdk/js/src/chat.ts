/**
 * The model's chat format: messages into tokens, and generated tokens into events.
 *
 * `Context.system`, `user`, `assistant`, `cue` and `seal` use this; the functions here give the same
 * tokens to programs that keep their own buffers.
 */

import type { Message, Model } from "./model.ts";
import { TextDecoder } from "./stream.ts";

const EXAMPLE: Message[] = [
  { role: "user", content: "Hi" },
  { role: "assistant", content: "Hello." },
];

/**
 * Messages of a context.
 *
 * A chat template renders a whole conversation, and may render a part in another way when more
 * follows: move the system message, or leave past thinking out. So the whole is rendered each time.
 * Where it begins with the text that is there, the rest is added; where it does not, the context is
 * cut back to where the two part.
 */
export class Conversation {
  /** Whether a message is the last thing said, so the assistant is next. */
  unanswered = false;
  /** Tokens cut off since the template changed its mind about them. */
  recomputed = 0;
  #model: Model;
  #messages: Message[] = [];
  #past: Message[] = []; // turns that seem to precede, where other text does
  #rendered = 0; // messages that are tokens already
  #turnStart: number | null = null; // token at which the assistant's open turn starts
  #text = ""; // the conversation's text so far
  // How long text and context were after each part. A cut never goes below the first.
  #marks: [number, number][] = [];

  /** `more` are arguments of the template, next to the messages. */
  constructor(
    model: Model,
    readonly more: Record<string, unknown> = {},
  ) {
    this.#model = model;
  }

  /** Whether messages are not tokens yet. */
  get waiting(): boolean {
    return this.#rendered < this.#messages.length;
  }

  /** An independent copy. */
  copy(): Conversation {
    const other = new Conversation(this.#model, this.more);
    other.#messages = this.#messages.slice();
    other.#past = this.#past;
    other.#rendered = this.#rendered;
    other.#turnStart = this.#turnStart;
    other.#text = this.#text;
    other.#marks = this.#marks.slice();
    other.recomputed = this.recomputed;
    other.unanswered = this.unanswered;
    return other;
  }

  /**
   * Adds a message; first the tokens since the last cue become the assistant's.
   *
   * @param tokens all of the context.
   */
  add(message: Message, tokens: number[]): void {
    if (this.#turnStart !== null) {
      const { tokenizer, stopTokens } = this.#model;
      const generated = tokens.slice(this.#turnStart);
      this.#text += tokenizer.decode(generated);
      this.#marks.push([this.#text.length, tokens.length]);
      // The program may have ended the turn itself.
      if (generated.length && stopTokens.includes(generated[generated.length - 1])) generated.pop();
      this.#messages.push({ role: "assistant", content: tokenizer.decode(generated) });
      this.#turnStart = null;
      this.#rendered += 1;
    }
    this.#messages.push(message);
    this.unanswered = true;
  }

  /**
   * Renders the messages that wait, and what starts the assistant's turn if `cue`.
   *
   * @param tokens all of the context.
   * @returns how many of the tokens stay, and those that follow them.
   */
  render(cue: boolean, tokens: number[]): [number, number[]] {
    if (this.#turnStart !== null && !this.waiting) return [tokens.length, []]; // cued already
    const last = this.#marks[this.#marks.length - 1];
    if (last === undefined || last[1] !== tokens.length) this.#begin(tokens.length);
    const text = this.#apply(this.#messages, cue);
    const [keep, added] = this.#continuation(text, tokens);
    this.#text = text;
    this.#rendered = this.#messages.length;
    this.#marks.push([text.length, keep + added.length]);
    this.recomputed += tokens.length - keep;
    if (cue) {
      this.#turnStart = keep + added.length;
      this.unanswered = false;
    }
    return [keep, added];
  }

  /** Begins at a text that is no part of the conversation, as it would after any turns. */
  #begin(length: number): void {
    if (length && !this.#rendered) this.#past = EXAMPLE;
    const past = this.#messages.slice(0, this.#rendered);
    this.#text = length ? this.#apply(past, false) : "";
    this.#marks = [[this.#text.length, length]];
  }

  #apply(messages: Message[], cue: boolean): string {
    return this.#model.tokenizer.applyChatTemplate([...this.#past, ...messages], cue, this.more);
  }

  /** How many tokens stay for a text, and those that follow them. */
  #continuation(text: string, tokens: number[]): [number, number[]] {
    const same = shared(this.#text, text);
    while (this.#marks.length && this.#marks[this.#marks.length - 1][0] > same) this.#marks.pop();
    if (!this.#marks.length) {
      throw new Error(
        "the model's chat template renders what was there before this conversation in another way" +
          " when messages follow: begin an empty context",
      );
    }
    const [characters, keep] = this.#marks[this.#marks.length - 1];
    const added = this.#tokensAfter(text, characters);
    const common = shared(tokens.slice(keep), added);
    return [keep + common, added.slice(common)];
  }

  /** Tokens of a text from a character on, if possible as they are within the whole. */
  #tokensAfter(text: string, start: number): number[] {
    const { tokenizer } = this.#model;
    const whole = tokenizer.encode(text);
    const before = tokenizer.encode(text.slice(0, start));
    if (shared(whole, before) === before.length) return whole.slice(before.length);
    return tokenizer.encode(text.slice(start));
  }
}

/** With how many characters or tokens two texts or lists begin alike. */
function shared(one: ArrayLike<unknown>, other: ArrayLike<unknown>): number {
  const most = Math.min(one.length, other.length);
  for (let i = 0; i < most; i++) if (one[i] !== other[i]) return i;
  return most;
}

/** What messages add to the text of those before them. */
function difference(model: Model, old: Message[], added: Message[], cue: boolean): string {
  const { tokenizer } = model;
  const before = tokenizer.applyChatTemplate(old, false);
  const after = tokenizer.applyChatTemplate([...old, ...added], cue);
  if (!after.startsWith(before)) {
    throw new Error(
      "the model's chat template renders earlier messages in another way when others follow: fill the" +
        " whole conversation at once, with `context.fill(model.tokenizer.applyChatTemplate(...))`",
    );
  }
  return after.slice(before.length);
}

function turn(model: Model, role: string, content: string, old: Message[]): number[] {
  return model.tokenizer.encode(difference(model, old, [{ role, content }], false));
}

/** Tokens of a conversation that starts with a system message. */
export function system(model: Model, message: string): number[] {
  const text = model.tokenizer.applyChatTemplate([{ role: "system", content: message }]);
  return model.tokenizer.encode(text);
}

/** Tokens of a user's turn in the middle of a conversation. */
export function user(model: Model, message: string): number[] {
  return turn(model, "user", message, EXAMPLE);
}

/** Tokens of an assistant's turn in the middle of a conversation. */
export function assistant(model: Model, message: string): number[] {
  return turn(model, "assistant", message, EXAMPLE.slice(0, 1));
}

/** Tokens that start the assistant's turn. */
export function cue(model: Model): number[] {
  return model.tokenizer.encode(difference(model, EXAMPLE.slice(0, 1), [], true));
}

/** The token that ends the assistant's turn. */
export function seal(model: Model): number[] {
  return model.stopTokens.slice(0, 1);
}

/** Tokens that end the assistant's turn. */
export function stopTokens(model: Model): number[] {
  return model.stopTokens.slice();
}

/** What a batch of generated tokens means: nothing to show yet; new text, never empty; the end of the
 * turn, with all its text; a special token that is no text. */
export type Event =
  | { kind: "idle" }
  | { kind: "delta"; text: string }
  | { kind: "done"; text: string }
  | { kind: "interrupt"; token: number };

/**
 * Turns generated tokens into events. Feed every batch in order.
 *
 * A generator swallows the stop token that ends it, so the end of the turn shows as an empty batch.
 */
export class Decoder {
  #model: Model;
  #special: Set<number>;
  #decoder: TextDecoder;
  #text = "";

  constructor(model: Model) {
    this.#model = model;
    this.#special = new Set(model.tokenizer.specialTokens().map(([, token]) => token));
    this.#decoder = newDecoder(model);
  }

  /** The event that these tokens make; the last one, if a special token is among them. */
  feed(tokens: number[]): Event {
    const end = tokens.findIndex((token) => this.#model.stopTokens.includes(token));
    const shown = end < 0 ? tokens : tokens.slice(0, end);
    const special = shown.filter((token) => this.#special.has(token));
    let text = "";
    for (const token of shown) if (!this.#special.has(token)) text += this.#decoder.feed(token);
    this.#text += text;
    if (end >= 0 || !tokens.length) {
      this.#text += this.#decoder.finish();
      return { kind: "done", text: this.#text };
    }
    const token = special.at(-1);
    if (token !== undefined) return { kind: "interrupt", token };
    return text ? { kind: "delta", text } : { kind: "idle" };
  }

  /** Forgets all that was fed. */
  reset(): void {
    this.#decoder = newDecoder(this.#model);
    this.#text = "";
  }
}

function newDecoder(model: Model): TextDecoder {
  return new TextDecoder((tokens) => model.tokenizer.decode(tokens));
}
