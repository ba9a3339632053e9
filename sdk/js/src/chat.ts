/** The messages of a context in the model's chat format. */

import type { Message, Model } from "./model.ts";

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
  /** True if a message is the last thing said, so the assistant is next. */
  unanswered = false;
  /** Tokens cut off since the template changed its mind about them. */
  recomputed = 0;
  private messages: Message[] = [];
  private past: Message[] = []; // turns that seem to precede, where other text does
  private rendered = 0; // messages that are tokens already
  private turnStart: number | null = null; // token at which the assistant's open turn starts
  private text = ""; // the conversation's text so far
  // How long text and context were after each part. A cut never goes below the first.
  private marks: [number, number][] = [];

  /** `more` are arguments of the template, next to the messages. */
  constructor(
    private model: Model,
    readonly more: Record<string, unknown> = {},
  ) {}

  /** True if messages are not tokens yet. */
  get waiting(): boolean {
    return this.rendered < this.messages.length;
  }

  /** An independent copy. */
  copy(): Conversation {
    const other = Object.assign(new Conversation(this.model, this.more), this);
    other.messages = this.messages.slice();
    other.marks = this.marks.slice();
    return other;
  }

  /**
   * Adds a message; first the tokens since the last cue become the assistant's.
   *
   * @param tokens all of the context.
   */
  add(message: Message, tokens: number[]): void {
    if (this.turnStart !== null) {
      const { tokenizer, stopTokens } = this.model;
      const generated = tokens.slice(this.turnStart);
      this.text += tokenizer.decode(generated);
      this.marks.push([this.text.length, tokens.length]);
      // The program may have ended the turn itself.
      if (generated.length && stopTokens.includes(generated[generated.length - 1])) generated.pop();
      this.messages.push({ role: "assistant", content: tokenizer.decode(generated) });
      this.turnStart = null;
      this.rendered += 1;
    }
    this.messages.push(message);
    this.unanswered = true;
  }

  /**
   * Renders the messages that wait, and what starts the assistant's turn if `cue`.
   *
   * @param tokens all of the context.
   * @returns how many of the tokens stay, and those that follow them.
   */
  render(cue: boolean, tokens: number[]): [number, number[]] {
    if (this.turnStart !== null && !this.waiting) return [tokens.length, []]; // cued already
    const last = this.marks[this.marks.length - 1];
    if (last === undefined || last[1] !== tokens.length) this.#begin(tokens.length);
    const text = this.#apply(this.messages, cue);
    const [keep, added] = this.#continuation(text, tokens);
    this.text = text;
    this.rendered = this.messages.length;
    this.marks.push([text.length, keep + added.length]);
    this.recomputed += tokens.length - keep;
    if (cue) {
      this.turnStart = keep + added.length;
      this.unanswered = false;
    }
    return [keep, added];
  }

  /** Begins at a text that is no part of the conversation, as it would after any turns. */
  #begin(length: number): void {
    if (length && !this.rendered) this.past = EXAMPLE;
    const past = this.messages.slice(0, this.rendered);
    this.text = length ? this.#apply(past, false) : "";
    this.marks = [[this.text.length, length]];
  }

  #apply(messages: Message[], cue: boolean): string {
    return this.model.tokenizer.applyChatTemplate([...this.past, ...messages], cue, this.more);
  }

  /** How many tokens stay for a text, and those that follow them. */
  #continuation(text: string, tokens: number[]): [number, number[]] {
    const same = shared(this.text, text);
    while (this.marks.length && this.marks[this.marks.length - 1][0] > same) this.marks.pop();
    if (!this.marks.length) {
      throw new Error(
        "the model's chat template renders what was there before this conversation in another way" +
          " when messages follow: begin an empty context",
      );
    }
    const [characters, keep] = this.marks[this.marks.length - 1];
    const added = this.#tokensAfter(text, characters);
    const common = shared(tokens.slice(keep), added);
    return [keep + common, added.slice(common)];
  }

  /** Tokens of a text from a character on, if possible as they are within the whole. */
  #tokensAfter(text: string, start: number): number[] {
    const { tokenizer } = this.model;
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
