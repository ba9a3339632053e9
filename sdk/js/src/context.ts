/** A context: a text whose keys and values stay in the server's KV pages; continue or fork it. */

import { Conversation } from "./chat.ts";
import { asText, asU32s } from "./convert.ts";
import { ProgramSampler } from "./device.ts";
import { checkOptions, isPieError } from "./errors.ts";
import { Generator, type Stops } from "./generation.ts";
import { Grammar } from "./grammar.ts";
import { appendImage } from "./images.ts";
import { type Message, Model } from "./model.ts";
import { spans } from "./pages.ts";
import * as raw from "./raw.ts";
import { DISTRIBUTION_SIZE, type Distribution, Sampler } from "./sample.ts";
import { Sequence } from "./sequence.ts";
import { distributions } from "./several.ts";

/** Options of a context. */
export interface ContextOptions {
  /** True if `fill` starts an empty context with the model's beginning-of-sequence token, if its
   * tokenizer does so; by default so. */
  addBos?: boolean;
  /** LoRA adapter that everything goes through, one of `model.adapters`. */
  adapter?: string;
  /** True to begin with what this user's inferlets have computed of the same text, and to let them
   * find what is computed here; by default so. */
  prefixCache?: boolean;
  /** Position of the first token. */
  firstPosition?: number;
  /** More values for the chat template, by its names: `tools`, `enable_thinking`, ... */
  chat?: Record<string, unknown>;
}

/** Options of a generation. */
export interface GenerateOptions {
  /** Most tokens to generate; by default up to the model's longest context. */
  maxTokens?: number;
  /** Token ids and strings that end it, or one string; by default the model's stop tokens. */
  stop?: Stops;
  /** Makes the choices repeatable; overrides the sampler's. */
  seed?: number | bigint;
  /** A grammar of the text; the server then chooses, and ends where the grammar does. */
  grammar?: Grammar;
  /** True if tokens that the grammar leaves no choice of are taken without asking the model. */
  forced?: boolean;
  /** True if the server may go on before a token has arrived here; the output is the same. */
  runAhead?: boolean;
  /** How many tokens the server may guess at a time, 1 to 16: what came after the last ones where they
   * came before (prompt lookup). The output is the same, and comes sooner where it repeats. */
  speculate?: number;
}

const MOST_GUESSES = 16; // tokens at a time

/** Options of `Context.open`. */
export interface OpenOptions {
  /** LoRA adapter that the saved ones went through, and the rest goes through. */
  adapter?: string;
  /** Position of what is filled in; by default the number of tokens. What was saved with positions of
   * its own ends elsewhere: pass what `nextPosition` was. */
  nextPosition?: number;
}

/**
 * A text that grows: prompts are filled in, tokens are generated, forks share what is there.
 *
 *     const context = new Context(Model.load()).fill("The capital of France is");
 *     const text = await context.generate(Sampler.argmax(), { maxTokens: 8 }).collectText();
 *
 * What is filled in waits in a buffer until `flush` or the next generation, which runs it through the
 * model. Full pages are never written again, so forks share them and copy only the last, partial page,
 * when they first write to it. Commands of different contexts are batched together: run many with
 * `Promise.all`; use one context from one branch at a time.
 *
 * A context gives its pages back on `release`, or when the inferlet ends.
 */
export class Context {
  /**
   * The layer below the texts: tokens, pages, commands. For programs that combine a context with
   * functions of `raw`; what it offers may change.
   */
  sequence: Sequence;
  #addBos: boolean;
  #chat: Conversation;

  /**
   * The version of the weights that compute its next token: of its adapter the hash that `upload_adapter`
   * has returned, empty of an operator's; of the model, behind a `+` if there is an adapter, empty until
   * the operator has replaced them.
   */
  get weightsVersion(): string {
    return raw.weightsVersion(this.model.name, this.sequence.adapter ?? "");
  }

  /** Makes an empty context. */
  constructor(model: Model, options: ContextOptions = {}, forked?: { sequence: Sequence; chat: Conversation }) {
    const names = ["addBos", "adapter", "prefixCache", "firstPosition", "chat"] as const;
    const { adapter = null, prefixCache = true, firstPosition = 0, addBos = true, chat } =
      checkOptions("Context", options, names);
    if (!(model instanceof Model)) throw new TypeError("new Context takes a model, as `Model.load()`");
    this.sequence = forked?.sequence ?? new Sequence(model, adapter, prefixCache);
    if (!forked) this.sequence.shift = firstPosition;
    this.#addBos = addBos;
    this.#chat = forked?.chat ?? new Conversation(model, chat);
  }

  // What is in it

  get model(): Model {
    return this.sequence.model;
  }

  /** Tokens that fit into a page. */
  get pageSize(): number {
    return this.sequence.pages.size;
  }

  /** Handles of its KV pages, in order; forks have those in common that they share. */
  get pages(): number[] {
    return this.sequence.pages.addresses.slice();
  }

  /** Its command queue, for functions of `raw`. */
  get queue(): number {
    return this.sequence.queue;
  }

  /** Tokens in the pages; those of `buffer` are not among them. */
  get seqLen(): number {
    return this.sequence.tokens.length;
  }

  /** Position of the token that comes next; less than the model's `maxPosition`. */
  get nextPosition(): number {
    return this.length + this.sequence.shift;
  }

  /** All tokens, buffered ones included. Those of an opened context are -1. */
  get tokens(): number[] {
    this.#render();
    return this.#all();
  }

  /** Tokens that wait for the next `flush` or generation. */
  buffer(): number[] {
    this.#render();
    return this.sequence.pending.slice();
  }

  /** How many tokens there are, buffered ones included. */
  get length(): number {
    this.#render();
    return this.sequence.length;
  }

  // Filling

  /** Appends text. Special tokens written in it are recognised. */
  fill(text: string): this {
    this.#render();
    const tokens = this.model.tokenizer.encode(text);
    const bos = this.model.bosToken;
    if (this.#addBos && !this.sequence.length && bos !== null && tokens[0] !== bos) {
      this.sequence.pending.push(bos);
    }
    this.#add(tokens);
    this.#chat.unanswered = false;
    return this;
  }

  /** Appends tokens as they are. */
  append(tokens: Iterable<number>): this {
    this.#render();
    this.#add(asU32s(tokens));
    this.#chat.unanswered = false;
    return this;
  }

  /**
   * Runs what is buffered, and then an image file, after it.
   *
   * It takes as many tokens' places as `images.tokensOf` says, and these tokens are -1; in some models
   * it takes fewer positions (`nextPosition`). Models differ in the text that they expect around an
   * image: fill it in.
   *
   * @throws PieError `unsupported` if the model reads text only, `invalid-argument` if the file can't
   *   be decoded (the context is as it was, flushed), `out-of-resources`.
   */
  async image(data: Uint8Array): Promise<void> {
    this.#render();
    await appendImage(this.sequence, data);
    this.#chat.unanswered = false;
  }

  /** Appends a system message in the model's chat format. */
  system(message: string): this {
    return this.message("system", asText(message));
  }

  /** Appends a user message in the model's chat format. */
  user(message: string): this {
    return this.message("user", asText(message));
  }

  /** Appends an assistant message in the model's chat format (a turn of the past). */
  assistant(message: string): this {
    return this.message("assistant", asText(message));
  }

  /** Appends the start of the assistant's turn; `generate` does so itself after a message. */
  cue(): this {
    this.#goOn(true);
    return this;
  }

  /** Ends the assistant's turn with the model's stop token. */
  seal(): this {
    this.#render();
    this.sequence.pending.push(...this.model.stopTokens.slice(0, 1));
    return this;
  }

  /** Appends a message with all that its role has: `context.message("tool", "21 °C", { name })`. */
  message(role: string, content: unknown = null, fields: Omit<Message, "role"> = {}): this {
    this.#chat.add({ role, content, ...fields }, this.#all());
    return this;
  }

  /** Tokens that were cut off since the chat template changed what it had written of them. */
  get recomputed(): number {
    return this.#chat.recomputed;
  }

  // Running the model

  /** Runs what is buffered through the model, and waits until it is in the pages. */
  async flush(): Promise<void> {
    this.#render();
    await this.sequence.flush();
  }

  /**
   * Continues the context.
   *
   * @param sampler how to choose tokens; by default always the most likely one.
   * @returns a generator; see there for the ways to read it. Nothing runs before it is read.
   */
  generate(sampler?: Sampler | ProgramSampler | null, options: GenerateOptions = {}): Generator {
    const names = ["maxTokens", "stop", "seed", "grammar", "forced", "runAhead", "speculate"] as const;
    const { maxTokens, stop, seed, grammar = null, forced = true, runAhead = true, speculate = 0 } =
      checkOptions("generate", options, names);
    const isOne = sampler instanceof Sampler || sampler instanceof ProgramSampler;
    if ((sampler ?? null) !== null && !isOne) {
      throw new TypeError("generate takes a sampler first, as Sampler.argmax(), and options second");
    }
    let chosen = sampler ?? Sampler.argmax();
    if (seed !== undefined) chosen = chosen.seeded(seed);
    if (!(Number.isInteger(speculate) && speculate >= 0 && speculate <= MOST_GUESSES)) {
      throw new RangeError(`speculate is ${speculate}: 1 to ${MOST_GUESSES} tokens can be guessed`);
    }
    const choosing = { sampler: chosen, grammar, forced, speculate };
    if (grammar !== null && !(grammar instanceof Grammar)) {
      throw new TypeError("generate takes a grammar, such as Grammar.regex(text)");
    }
    // Within a grammar the server needs each token before it can say what may follow.
    const begin = () => {
      if (this.#chat.unanswered) this.cue();
    };
    return new Generator(this.sequence, begin, choosing, {
      maxTokens,
      stop,
      runAhead: runAhead && grammar === null,
    });
  }

  /** The `k` most likely next tokens after all that is filled in. */
  distribution(k = DISTRIBUTION_SIZE): Promise<Distribution> {
    this.#render();
    return this.sequence.nextDistribution(k);
  }

  /**
   * Runs tokens at once, and returns what may follow each: the `k` most likely tokens. They join the
   * context, behind what is filled in; `truncate` takes back those that turn out wrong. On a fork, it
   * scores a text: `logprob` of each distribution.
   *
   * @param tokens what follows.
   */
  async forward(tokens: Iterable<number>, k = DISTRIBUTION_SIZE): Promise<Distribution[]> {
    this.#render();
    const list = [...tokens];
    this.#chat.unanswered = false;
    return list.length ? distributions(this.sequence, list, k) : [];
  }

  // Branching and keeping

  /**
   * A second context with the same content, that shares the pages. If it generates at once, it runs
   * the last token again, for a hidden state of its own.
   */
  fork(): Context {
    const forked = { sequence: this.sequence.fork(), chat: this.#chat.copy() };
    return new Context(this.model, { addBos: this.#addBos }, forked);
  }

  /**
   * Keeps the first `length` tokens only. Chat messages that wait are rendered first; the conversation
   * is forgotten: the next message starts a new one.
   */
  truncate(length: number): this {
    if (!(length >= 0 && length <= this.length)) {
      throw new RangeError(`length ${length} is outside this context of ${this.length} tokens`);
    }
    this.#chat = new Conversation(this.model, this.#chat.more);
    this.sequence.truncate(length);
    return this;
  }

  /**
   * Says what the pages are worth when memory is short: a hint to the server. A prefix is of no use
   * without what is before it, so name that, too.
   *
   * @param priority -100 to 100; 0 is that of pages of which nothing was said.
   * @param seconds how long one above 0 holds. One below 0 holds until the text is used again.
   * @param options the first token of what has run that is meant, and the one after the last.
   * @throws PieError `invalid-argument`, `swapped-out`.
   */
  retain(
    priority: number,
    seconds = 3600,
    { first = 0, last = Infinity }: { first?: number; last?: number } = {},
  ): this {
    const { pages, tokens } = this.sequence;
    const end = Math.ceil(Math.min(last, tokens.length) / pages.size);
    const meant = spans(pages.addresses.slice(Math.floor(first / pages.size), end));
    raw.retainKvpage(this.queue, meant, priority, Math.max(0, Math.round(seconds * 1e9)));
    return this;
  }

  /**
   * Keeps the pages under a name, for `open` in this and other instances, until `delete`.
   *
   * @param shared whether other users may open it.
   * @param seconds after how long without an `open` the saved context ends.
   * @throws Error if something is buffered (`flush` first); PieError `already-exists`.
   */
  save(name: string, { shared = false, seconds }: { shared?: boolean; seconds?: number } = {}): void {
    if (this.buffer().length) {
      throw new Error("some tokens are not in the pages yet: `await context.flush()` first");
    }
    if (!this.seqLen) throw new RangeError("an empty context can't be saved");
    const { sequence, queue } = this;
    const { pages, tokens } = sequence;
    sequence.settle(); // a page that a queued command writes can't be saved
    const used = Math.ceil(tokens.length / pages.size);
    raw.exportKvpage(queue, spans(pages.addresses.slice(0, used)), name, shared);
    try {
      if (seconds != null) raw.expireExport(queue, name, Math.max(0, Math.round(seconds * 1e9)));
    } catch (error) {
      raw.releaseExport(queue, name);
      throw error;
    }
    pages.freeze(used);
  }

  /**
   * A context with the content saved under names, one behind the other; null if one is not there. Its
   * tokens are not known, so something has to be filled in before it generates. Options may follow the
   * names.
   */
  static open(model: Model, ...names: string[] | [...string[], OpenOptions]): Context | null {
    const last = names.at(-1);
    const { adapter, nextPosition }: OpenOptions = typeof last === "object" ? last : {};
    const context = new Context(model, { adapter });
    try {
      for (const name of names) {
        if (typeof name === "string") context.sequence.load(name);
      }
    } catch (error) {
      context.release();
      if (!isPieError(error, "not-found")) throw error;
      return null;
    }
    if (nextPosition !== undefined) context.sequence.shift = nextPosition - context.length;
    return context;
  }

  /** `open`, and `delete` the name. */
  static take(model: Model, name: string): Context | null {
    const context = Context.open(model, name);
    if (context !== null) Context.delete(model, name);
    return context;
  }

  /** Withdraws a saved context. Contexts opened from it stay. Throws PieError `not-found`. */
  static delete(model: Model, name: string): void {
    withQueue(model, (queue) => raw.releaseExport(queue, name));
  }

  /** Names of the saved contexts that may be opened. */
  static saved(model: Model): string[] {
    return withQueue(model, raw.listExports);
  }

  /** Gives the pages back. The context can't be used any more; a second call does nothing. */
  release(): void {
    this.sequence.release();
  }

  #all(): number[] {
    return [...this.sequence.tokens, ...this.sequence.pending];
  }

  /** One by one: a call takes half a million arguments at most. */
  #add(tokens: Iterable<number>): void {
    for (const token of tokens) this.sequence.pending.push(token);
  }

  /** Makes the context what the chat template makes of the conversation. */
  #goOn(cue: boolean): void {
    const [keep, added] = this.#chat.render(cue, this.#all());
    if (keep < this.sequence.length) this.sequence.truncate(keep);
    this.#add(added);
  }

  /** Turns the messages that wait into tokens. */
  #render(): void {
    if (this.#chat.waiting) this.#goOn(false);
  }
}

function withQueue<T>(model: Model, work: (queue: number) => T): T {
  const queue = raw.createQueue(model.name);
  try {
    return work(queue);
  } finally {
    raw.destroyQueue(queue);
  }
}
