/** Generating tokens one after the other. */

import { type Choice, type Choosing, DeviceChoice, NONE } from "./choice.ts";
import { PieError } from "./errors.ts";
import { Grammar } from "./grammar.ts";
import { DISTRIBUTION_SIZE, type Distribution } from "./sample.ts";
import type { Sequence } from "./sequence.ts";
import * as session from "./session.ts";
import { StopStrings, TextDecoder } from "./stream.ts";

const MOST_END_CHARACTERS = 1024; // of stop strings that the server looks for

/** Token ids and strings that end a generation. */
export type Stops = Iterable<number | string> | string;

/**
 * A generation under way; made by `Context.generate`. Read it in one of these ways:
 *
 *     const text = await generator.collectText();
 *     const value = await generator.collectJson(schema);
 *     const tokens = await generator.collectTokens();
 *     for await (const text of generator.streamText()) { ... }
 *     const text = await generator.sendText(); // to the client, as it comes
 *     for await (const token of generator.streamTokens()) { ... }
 *     for await (const step of generator) { const output = await step.execute(); ... }
 *
 * A generated token joins the context; the stop token that ends a generation does not. The text of a
 * stop string is left out of the text, its tokens stay in the context.
 *
 * However it is read, the same seed gives the same tokens. The server chooses, and goes on by itself
 * while the program reads (`runAhead`), until the program looks at a step or accepts tokens of its own.
 *
 * A context has one generation at a time. If another one begins, this one can't go on.
 */
export class Generator {
  #sequence: Sequence;
  #begin: () => void;
  #choosing: Choosing;
  #chooser: DeviceChoice | null = null; // made for the first token
  #runAhead: boolean;
  #most: number | null = null;
  #number = 0; // among the generations of the sequence; 0 before it has begun
  #count = 0;
  #done = false;
  #openStep = false; // a step was handed out, and has not been used
  #byHand = false; // the program looks at steps, or chooses tokens itself
  #scores: number[] | null = null; // log-probabilities that are collected
  #decoder: TextDecoder | null = null;
  #stopStrings: StopStrings;
  #stopTokens: Set<number>;

  /** @internal */
  constructor(
    sequence: Sequence,
    begin: () => void,
    choosing: Choosing,
    options: { maxTokens?: number; stop?: Stops; runAhead: boolean },
  ) {
    this.#sequence = sequence;
    this.#begin = begin;
    this.#choosing = choosing;
    this.#runAhead = options.runAhead;
    const { maxTokens, stop = sequence.model.stopTokens } = options;
    if (maxTokens !== undefined && (!Number.isInteger(maxTokens) || maxTokens < 0)) {
      throw new RangeError(`maxTokens is ${maxTokens}: it must be a whole number, 0 or more`);
    }
    this.#most = maxTokens ?? null;
    const stops = typeof stop !== "object" ? [stop] : [...stop];
    const wrong = stops.find((each) => !Number.isInteger(each) && typeof each !== "string");
    if (wrong !== undefined) {
      throw new TypeError(`stop: ${String(wrong)} is neither a token's id nor a text`);
    }
    this.#stopTokens = new Set(stops.filter((each) => typeof each === "number"));
    const size = sequence.model.vocabSize;
    for (const each of this.#stopTokens) {
      if (each < 0 || each >= size) throw new RangeError(`stop: ${each} is outside the vocabulary (0 to ${size - 1})`);
    }
    this.#stopStrings = new StopStrings(stops.filter((each) => typeof each === "string"));
  }

  /** Tokens so far. */
  get tokensGenerated(): number {
    return this.#count;
  }

  /** True if nothing more comes. */
  get isDone(): boolean {
    return this.#done;
  }

  /** True if the text so far satisfies the grammar; always true without one. */
  get isComplete(): boolean {
    return this.#choosing.grammar === null || (this.#chooser?.isComplete ?? false);
  }

  // Reading

  /** All tokens. */
  async collectTokens(): Promise<number[]> {
    const tokens: number[] = [];
    for (;;) {
      const part = await this.#advanceFar();
      if (!part.length) return tokens;
      for (const token of part) tokens.push(token); // they may be more than a call takes arguments
    }
  }

  /**
   * All tokens and the log-probability of each: of the model's own distribution, at temperature 1, before
   * the sampler and masks; NaN for a token that a grammar has forced.
   */
  async collectScored(): Promise<{ tokens: number[]; logprobs: number[] }> {
    const logprobs: number[] = (this.#scores = []);
    return { tokens: await this.collectTokens(), logprobs };
  }

  /** All text. */
  collectText(): Promise<string> {
    return this.#allText(false);
  }

  /**
   * All text, read as JSON. It is held to the schema, `strict`; without one, to the generation's own
   * grammar, or else to a JSON object. An Error says that `maxTokens` came before its end.
   */
  async collectJson(schema?: object | boolean | string): Promise<unknown> {
    if (schema !== undefined || this.#choosing.grammar === null) {
      this.#holdTo(schema === undefined ? Grammar.json() : Grammar.jsonSchema(schema, { strict: true }));
    }
    const text = await this.collectText();
    if (!this.isComplete) {
      throw new Error(
        `the JSON was cut off after ${this.#count} tokens, its end has not come: give \`maxTokens\`` +
          ` more than ${this.#count}. It begins ${JSON.stringify(text.slice(0, 200))}`,
      );
    }
    return JSON.parse(text);
  }

  #holdTo(grammar: Grammar): void {
    if (this.#number) throw new Error("the generation has begun: read all of it by `collectJson`");
    if (this.#choosing.grammar !== null) {
      throw new Error("the generation has a grammar: call `collectJson()` without a schema");
    }
    this.#choosing = { ...this.#choosing, grammar };
    this.#runAhead = false; // the server needs each token before it can say what may follow
  }

  /**
   * Sends the text to the client as it comes; returns all of it. The server does so by itself where
   * it goes on by itself, and waits while the client does not read.
   */
  sendText(): Promise<string> {
    return this.#allText(true);
  }

  async #allText(toClient: boolean): Promise<string> {
    const whole = await this.#wholeText(toClient);
    if (whole !== null) return whole;
    let text = "";
    for await (const piece of this.streamText()) {
      if (toClient) session.send(piece);
      text += piece;
    }
    return text;
  }

  /** Tokens as they come. */
  async *streamTokens(): AsyncGenerator<number, void, void> {
    try {
      for (let step; (step = await this.#advance()) !== null; ) yield step[0];
    } finally {
      this.#pause();
    }
  }

  /** Text as it comes, in pieces of whole characters. */
  async *streamText(): AsyncGenerator<string, void, void> {
    this.#start();
    if (this.#decoder === null && !this.#done) this.#decoder = this.#makeDecoder();
    try {
      for (let step; (step = await this.#advance()) !== null; ) if (step[1]) yield step[1];
    } finally {
      this.#pause();
    }
    const rest = this.#rest();
    if (rest) yield rest;
  }

  /** Steps: each has to be executed, or followed by `accept`. */
  async *[Symbol.asyncIterator](): AsyncGenerator<GenStep, void, void> {
    try {
      for (;;) {
        this.#start();
        if (!this.#done && this.#chooser === null) await this.#alone(async () => {});
        if (this.#done) return;
        if (this.#openStep) {
          throw new Error(
            "the step before did nothing, so the loop would never end: in each step, either" +
              " `await step.execute()` or pass tokens to `generator.accept`",
          );
        }
        this.#openStep = true;
        yield new GenStep(
          () => this.#execute(),
          (k = DISTRIBUTION_SIZE) => {
            this.#byHand = true; // the program may choose from now on
            this.#pause();
            return this.#sequence.nextDistribution(k);
          },
        );
      }
    } finally {
      this.#pause();
    }
  }

  /**
   * Continues with tokens chosen by the program, as if they had been sampled.
   *
   * @returns those before a stop token, up to the end of a stop string and within `maxTokens`.
   * @throws RangeError if the grammar does not allow one of them.
   */
  accept(tokens: Iterable<number>): number[] {
    this.#start();
    this.#checkTurn();
    this.#openStep = false;
    this.#byHand = true;
    const list = [...tokens];
    const stop = list.findIndex((token) => this.#stopTokens.has(token));
    const room = (this.#most ?? 0) - this.#count;
    this.#chooser?.check(list.slice(0, Math.min(stop < 0 ? list.length : stop, room)));
    const accepted: number[] = [];
    for (const token of list) {
      if (this.#take(token) === null) break;
      accepted.push(token);
    }
    this.#chooser?.note(accepted);
    return accepted;
  }

  /** All text, read by the server; null if it cannot, as where each token is needed first. */
  async #wholeText(toClient: boolean): Promise<string | null> {
    const ends = this.#stopStrings.stops;
    if (this.#number || ends.join("").length > MOST_END_CHARACTERS) return null;
    this.#start();
    if (this.#done) return "";
    const whole = await this.#alone((chooser) =>
      chooser.wholeText(this.#ahead(), this.#stopTokens, ends, toClient),
    );
    if (whole === null) return null;
    this.#decoder = null; // the text is read
    this.#join(whole.tokens);
    this.#done = true;
    this.#chooser?.close();
    return whole.text;
  }

  /** Begins the generation, with its first token or before. */
  #start(): void {
    if (this.#number) return;
    const sequence = this.#sequence;
    this.#checkTurn();
    this.#begin();
    // Of positions: of a context whose parts have positions of their own they go on from there.
    const length = sequence.length + sequence.shift;
    const longest = sequence.model.maxPosition;
    if (length > longest) {
      throw new PieError(
        `invalid-argument: the context has ${length} tokens and the model takes ${longest} at the` +
          " most: shorten the prompt, or `truncate` the context",
      );
    }
    this.#number = ++sequence.generation;
    this.#most = Math.min(longest - length, this.#most ?? Infinity);
    this.#done = this.#most === 0;
    // Pages are allocated several at once where a generation will need them.
    sequence.pages.expected = Math.ceil((sequence.length + this.#most) / sequence.pages.size);
    if (this.#stopStrings.stops.length) this.#decoder = this.#makeDecoder();
  }

  /** Refuses to mix this generation with another one, or with itself. */
  #checkTurn(): void {
    if (this.#sequence.choosing) {
      throw new Error(
        "a generation of this context is under way: wait for its token (is an `await` missing?), or" +
          " generate on `context.fork()`, which may go on at the same time",
      );
    }
    if (this.#number && this.#number !== this.#sequence.generation) {
      throw new Error(
        "another generation of this context has begun since, so this one can't go on: generate on" +
          " `context.fork()` where both are wanted",
      );
    }
  }

  /** Works with the chooser, made for the first token; other generations of the context stay out. */
  async #alone<T>(work: (chooser: DeviceChoice) => Promise<T>): Promise<T> {
    this.#checkTurn();
    this.#sequence.choosing = true;
    try {
      if (this.#chooser === null) {
        const sequence = this.#sequence;
        sequence.chooser?.close(); // of a generation that was not read to its end
        const matcher = await this.#choosing.grammar?.matcher(sequence.model);
        sequence.chooser = this.#chooser = new DeviceChoice(sequence, matcher ?? null, this.#choosing);
      }
      return await work(this.#chooser);
    } finally {
      this.#sequence.choosing = false;
    }
  }

  /** The next token and the text that it completes, if text is read; null at the end. */
  async #advance(): Promise<[number, string] | null> {
    this.#start();
    if (this.#done) return null;
    const token = await this.#alone((chooser) => chooser.nextToken(this.#ahead(), this.#stopTokens));
    const text = this.#take(token);
    if (text !== null) this.#score(1, 1);
    if (this.#done) this.#chooser?.close();
    return token === null || text === null ? null : [token, text];
  }

  /** As many of the next tokens as come at once; none at the end. */
  async #advanceFar(): Promise<number[]> {
    this.#start();
    if (this.#decoder !== null || this.#done) {
      const step = await this.#advance();
      return step === null ? [] : [step[0]];
    }
    const tokens = await this.#alone((chooser) => chooser.nextTokens(this.#ahead(), this.#stopTokens));
    const joined = this.#join(tokens);
    this.#score(tokens.length, joined.length);
    if (this.#done) this.#chooser?.close();
    return joined;
  }

  /** Notes the log-probabilities of the first of the last `count` tokens, where they are collected. */
  #score(count: number, first: number): void {
    if (!first || this.#scores === null) return;
    for (const logprob of this.#chooser?.logprobs(count).slice(0, first) ?? []) this.#scores.push(logprob);
  }

  /**
   * Notes tokens of which all but the last are in the context already; those that belong to it.
   */
  #join(tokens: number[]): number[] {
    this.#count += Math.max(0, tokens.length - 1);
    const last = tokens.length ? tokens[tokens.length - 1] : null;
    return this.#take(last) === null ? tokens.slice(0, -1) : tokens;
  }

  /** Tokens that the server may go on to by itself. */
  #ahead(): number {
    return this.#runAhead ? (this.#most ?? 0) - this.#count : 1;
  }

  /** The program reads no further for now: the server need not go on. */
  #pause(): void {
    if (this.#number === this.#sequence.generation) this.#chooser?.pause();
  }

  /** One step, with all that is known of its token. */
  async #execute(): Promise<Output> {
    this.#openStep = false;
    const choice = await this.#alone(async (chooser): Promise<Choice> => {
      if (this.#byHand || chooser.tells) return chooser.choose();
      // The server goes on by itself.
      return { token: await chooser.nextToken(this.#ahead(), this.#stopTokens), distribution: NONE };
    });
    const text = this.#take(choice.token);
    const tokens = choice.token === null || text === null ? [] : [choice.token];
    const rest = this.#done ? this.#rest() : "";
    if (this.#done) this.#chooser?.close();
    return new Output(tokens, (text ?? "") + rest, choice.logprob, () => choice.distribution);
  }

  /**
   * Appends a token to the context, unless it ends the generation.
   *
   * @returns the text that it completes, empty where no text is read; null if it was not appended.
   */
  #take(token: number | null): string | null {
    if (this.#done) return null;
    if (token === null || this.#stopTokens.has(token)) {
      this.#done = true;
      return null;
    }
    this.#sequence.pending.push(token);
    this.#count += 1;
    if (this.#count === this.#most) this.#done = true;
    if (this.#decoder === null) return "";
    const [text, found] = this.#stopStrings.feed(this.#decoder.feed(token));
    if (found) {
      this.#done = true;
      this.#decoder = null;
    }
    return text;
  }

  /** Text that waited for more, at the end. */
  #rest(): string {
    if (this.#decoder === null) return "";
    const [text, found] = this.#stopStrings.feed(this.#decoder.finish());
    this.#decoder = null;
    return found ? text : text + this.#stopStrings.finish();
  }

  #makeDecoder(): TextDecoder {
    const { tokenizer } = this.#sequence.model;
    return new TextDecoder((tokens) => tokenizer.decode(tokens), this.#sequence.tail());
  }
}

/** A step's tokens (none, if a stop token came) and the text they complete. */
export class Output {
  /** @internal */
  constructor(
    readonly tokens: number[],
    /** Empty unless the generator has stop strings. */
    readonly text: string,
    /** The token's log-probability at temperature 1, if the sampler's `logprobs` asked for any. */
    readonly logprob: number | undefined,
    /** The most likely tokens, as many as the sampler's `logprobs` asked for. */
    readonly distribution: () => Distribution,
  ) {}
}

/** One step of a generation: `execute` it, or look at `distribution` and `accept` a token. */
export class GenStep {
  /** @internal */
  constructor(
    /** Runs the model, samples a token, and appends it to the context. */
    readonly execute: () => Promise<Output>,
    /**
     * Runs the model and returns the `k` most likely tokens, without choosing. Follow it with
     * `Generator.accept` to continue with a token of your own choice.
     */
    readonly distribution: (k?: number) => Promise<Distribution>,
  ) {}
}
