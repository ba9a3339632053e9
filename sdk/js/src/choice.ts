/** How a generation's tokens are chosen: by the server, or by a function of the program's own. */

import { type Attend, ProgramSampler, readValues, type State, valuesJson } from "./device.ts";
import type { Grammar, Matcher } from "./grammar.ts";
import * as raw from "./raw.ts";
import { type Guessing, Run, type WholeText } from "./run.ts";
import { DISTRIBUTION_SIZE, Distribution, type Sampler } from "./sample.ts";
import type { Sequence } from "./sequence.ts";

/** A token, null where a grammar has come to its end, and what is known about it. */
export interface Choice {
  token: number | null;
  /** The most likely tokens, as many as the chooser looked at or was asked for. */
  distribution: Distribution;
  /** The token's log-probability at temperature 1, if the server chose it. */
  logprob?: number;
}

/** The distribution where none is known. */
export const NONE = new Distribution([], []);

/** A program's own rule: a token, of the most likely ones and their probabilities at temperature 1. */
export type Rule = (tokens: number[], probabilities: number[]) => number;

export const CHOOSE_AND_GRAMMAR =
  "`choose` and a grammar: within a grammar the server chooses. Leave one out, or walk through the" +
  " grammar yourself: `await grammar.matcher(model)`";

/** How the tokens of a generation are to be chosen. */
export interface Choosing {
  sampler: Sampler | ProgramSampler;
  grammar: Grammar | null;
  /** True if tokens that the grammar leaves no choice about are taken without the model. */
  forced: boolean;
  /** Other texts, which get the same tokens; the sampler reads their logits. */
  beside: Sequence[];
  /** The program's own rule, instead of a sampler. */
  choose?: Rule;
  /** How the server may guess tokens. */
  guessing: Guessing;
  /** A program that chooses what layers read. */
  attend?: Attend;
}

/** The needs of a sampler's device programs, as the server tells them. */
interface Facts {
  looks_back: boolean;
  counts: boolean;
  has_state: boolean;
  /** Whether the state that is told is that of a program in the layers. */
  in_layers: boolean;
  beside: number;
  /** How many of the prompt's last inputs have to run for `attend`: 0 for all, null for none. */
  window: number | null;
}

/** The server's choice, within a grammar if there is one, or the program's own. */
export class DeviceChoice {
  #sequence: Sequence;
  #sampler: Sampler | ProgramSampler;
  #matcher: Matcher | null;
  #choosing: Choosing;
  #told: number; // tokens that have to run for it
  #looked = false; // the last token has run, and no choice has followed
  #logprob = NaN; // of the last choice by itself
  #waiting: number[] = []; // forced tokens that the matcher has consumed
  #run: Run;
  #given: number; // tokens before the first choice
  #handle = -1;
  #facts: Facts = {
    looks_back: false,
    counts: false,
    has_state: false,
    in_layers: false,
    beside: 0,
    window: null,
  };
  #state: number | null = null; // a future of a device program's, once the sampler is closed
  #closed = false;
  #ended = true; // whether the text might end where the matcher was closed

  constructor(
    sequence: Sequence,
    matcher: Matcher | null,
    choosing: Choosing,
  ) {
    const { beside } = choosing;
    this.#sequence = sequence;
    this.#sampler = choosing.sampler;
    this.#matcher = matcher;
    this.#choosing = choosing;
    this.#run = new Run(sequence);
    this.#given = sequence.knownTokens().length;
    try {
      if (choosing.choose === undefined || choosing.attend !== undefined) {
        this.#handle = sequence.openSampler(this.#parameters()); // not every model has samplers
        this.#facts = JSON.parse(raw.samplerFacts(sequence.queue, this.#handle));
      }
      const { window, beside: wanted } = this.#facts;
      this.#told = window === null ? 0 : window || Infinity;
      if (wanted !== beside.length) {
        throw new RangeError(
          `the sampler reads the logits of ${wanted} contexts beside this one (by` +
            ` \`device.beside\`), and there are ${beside.length}`,
        );
      }
    } catch (error) {
      matcher?.close();
      sequence.closeSampler(this.#handle);
      throw error;
    }
    this.#feedAll();
  }

  #parameters(): string {
    const text = this.#sampler.toJSON();
    if (this.#choosing.attend === undefined) return text;
    const attend = `"attend": ${this.#choosing.attend.toJSON()}}`;
    return text === "{}" ? `{${attend}` : `${text.slice(0, -1)}, ${attend}`;
  }

  /** True if the text may end here: always without a grammar. */
  get isComplete(): boolean {
    return this.#matcher === null ? this.#ended : this.#matcher.isAccepting;
  }

  /**
   * True if choices are taken one by one: more than the token is to be known of each, or a step that is
   * undone would have been counted, so that the draws that follow were others.
   */
  get tells(): boolean {
    return this.#choosing.choose !== undefined || this.#sampler.logprobs > 0 || this.#facts.counts;
  }

  /** The next token, null at the end of the grammar. `most` may be chosen ahead. */
  async nextToken(most: number, stops: Set<number>): Promise<number | null> {
    if (!this.#run.goesOn() && !(await this.#start(most, stops))) return (await this.choose()).token;
    const token = await this.#run.next();
    return token === null ? this.nextToken(most, stops) : token;
  }

  /** All tokens at once, if the server goes on by itself; else the next one, or none. */
  async nextTokens(most: number, stops: Set<number>): Promise<number[]> {
    if (this.#run.goesOn() || (await this.#start(most, stops))) {
      const tokens = await this.#run.rest();
      if (tokens.length) return tokens;
    }
    const token = await this.nextToken(most, stops);
    return token === null ? [] : [token];
  }

  /** All tokens at once with their text; null if the server does not go on by itself. */
  async wholeText(
    most: number,
    stops: Set<number>,
    ends: string[],
    toClient: boolean,
  ): Promise<WholeText | null> {
    const before = this.#sequence.tail();
    if (!(await this.#start(most, stops))) return null;
    return this.#run.text(before, ends, toClient);
  }

  /** Log-probabilities of the last tokens, all of them of one call; NaN for one that is forced. */
  logprobs(count: number): number[] {
    if (this.#choosing.choose !== undefined) {
      throw new RangeError("`choose` is the program's own: it sees the probabilities that it is given");
    }
    return this.#run.logprobs(count) ?? [this.#logprob];
  }

  /** Starts a run after all that is pending; whether there is one now. */
  async #start(most: number, stops: Set<number>): Promise<boolean> {
    // Each token's mask depends on the one before; and a run goes on with one text alone.
    const { beside, choose } = this.#choosing;
    if (this.#matcher !== null || beside.length || choose !== undefined || most < 2) return false;
    await this.#prepare();
    return this.#run.start(this.#handle, most, stops, this.#choosing.guessing);
  }

  /**
   * As `nextToken`, with what is known about the token. A program's own choice the server does not need
   * to know, unless a program in the layers follows it: then it "chooses" the only token that it may.
   */
  async choose(): Promise<Choice> {
    const matcher = this.#matcher;
    const { choose, attend } = this.#choosing;
    let own: number | undefined;
    if (choose !== undefined) {
      const distribution = await this.look(DISTRIBUTION_SIZE);
      own = choose(distribution.tokens, distribution.probabilities);
      if (!Number.isInteger(own)) {
        throw new TypeError(`\`choose\` returned ${own}: it must return a token, such as one of \`tokens\``);
      }
      if (attend === undefined) return { token: own, distribution };
    }
    if (matcher !== null) {
      if (this.#force(matcher)) {
        this.#logprob = NaN;
        return { token: this.#waiting.shift() as number, distribution: NONE };
      }
      if (matcher.isFinished) return { token: null, distribution: NONE };
    }
    const future = await this.#queueChoice(own);
    const answer = this.#sequence.outcome(future, raw.takeSample);
    const [token, logprob, top, logprobs] = await answer.catch((error: unknown) => {
      for (const other of this.#choosing.beside) other.recover(error);
      throw error;
    });
    for (const other of this.#choosing.beside) other.ran(0);
    this.#logprob = logprob;
    return { token, logprob, distribution: new Distribution(top, logprobs.map(Math.exp)) };
  }

  /** The embed after which the next token is chosen, after all that is pending. */
  async #prepare(): Promise<number> {
    this.#run.retract();
    if (this.#run.undone) {
      this.#run.undone = false;
      if (this.#facts.counts) this.#renew();
    }
    const embed = await this.#read();
    this.#looked = false;
    return embed;
  }

  /** The embed after all that is pending, of which `attend` has the last choice alone. */
  async #read(): Promise<number> {
    const reads = this.#choosing.attend !== undefined && !this.#looked;
    const embed = await this.#sequence.outputEmbed(this.#told, reads ? this.#handle : undefined);
    this.#told = 0;
    return embed;
  }

  /** The `k` most likely next tokens, without a choice. */
  async look(k: number): Promise<Distribution> {
    await this.#read();
    this.#looked = true;
    return this.#sequence.nextDistribution(k);
  }

  /** The future of the next token, after all that is pending has been queued. */
  async #queueChoice(own?: number): Promise<number> {
    const { queue } = this.#sequence;
    const embed = await this.#prepare();
    for (const other of this.#choosing.beside) {
      raw.mixLogits(other.queue, await other.outputEmbed(), queue, this.#handle);
    }
    if (own !== undefined) {
      const size = this.#sequence.model.vocabSize;
      if (own < 0 || own >= size) throw new RangeError(`${own} is no token: there are 0 to ${size - 1}`);
      const mask = new Uint32Array(Math.ceil(size / 32));
      mask[own >> 5] = 1 << (own & 31);
      return raw.sampleMasked(queue, embed, this.#handle, mask);
    }
    if (this.#matcher === null) return raw.sample(queue, embed, this.#handle);
    return raw.sampleConstrained(queue, embed, this.#handle, this.#matcher.handle);
  }

  /** Replaces the sampler, which has counted choices that were undone. */
  #renew(): void {
    if (this.#facts.has_state || this.#choosing.attend !== undefined) {
      throw new Error(
        "tokens of this generation were undone, and its device program counts tokens and has state:" +
          " begin a new generation",
      );
    }
    const { seed } = this.#sampler;
    if (seed !== undefined) this.#sampler = this.#sampler.seeded(BigInt(seed) + 1n); // other draws
    this.#sequence.closeSampler(this.#handle);
    this.#handle = this.#sequence.openSampler(this.#parameters());
    this.#feedAll();
  }

  /** The values given to the device program that chooses, with its state after the tokens so far. */
  async state(): Promise<State> {
    const { has_state, in_layers } = this.#facts;
    const { given } = (in_layers && this.#choosing.attend) || this.#program();
    if (!has_state && !in_layers) return { ...given };
    if (!this.#closed) this.#run.retract();
    this.#state ??= this.#closed ? null : raw.readState(this.#sequence.queue, this.#handle);
    if (this.#state === null) throw new Error("the state of this generation was read already");
    const future = this.#state;
    this.#state = null;
    return { ...given, ...readValues(await this.#sequence.outcome(future, raw.takeText)) };
  }

  /** Gives the device program that chooses other values of some names, from the next token on. */
  put(values: State): void {
    const program = this.#program();
    if (this.#closed) throw new Error("the generation has ended");
    this.#run.retract();
    raw.writeState(this.#sequence.queue, this.#handle, valuesJson(values));
    this.#sampler = program.givenAgain(values);
  }

  #program(): ProgramSampler {
    if (this.#sampler instanceof ProgramSampler) return this.#sampler;
    throw new Error("no device program has chosen a token of this generation");
  }

  /** True if a forced token waits; asks the grammar for more of them. */
  #force(matcher: Matcher): boolean {
    const { forced, attend } = this.#choosing;
    // With `attend` each token is to run by itself.
    if (!this.#waiting.length && forced && attend === undefined) {
      const tokens = matcher.forced();
      if (tokens.length) {
        matcher.advance(tokens);
        this.#feed(tokens);
        this.#waiting.push(...tokens);
      }
    }
    return this.#waiting.length > 0;
  }

  /** Refuses tokens that the program has chosen itself, if they are not allowed. */
  check(tokens: number[]): void {
    if (this.#choosing.attend !== undefined) {
      throw new TypeError(
        "`attend` follows the tokens that the server chooses: accept none, but `await step.execute()`;" +
          " or write the rule as a `device.program`",
      );
    }
    if (this.#matcher === null) return;
    const allowed = this.#matcher.countAllowed(tokens);
    if (allowed < tokens.length) {
      throw new RangeError(`the grammar does not allow token ${tokens[allowed]} here`);
    }
  }

  /** Takes note of tokens that the program has chosen itself, after `check`. */
  note(tokens: number[]): void {
    this.#matcher?.advance(tokens);
    this.#feed(tokens);
  }

  #feed(tokens: number[]): void {
    if (this.#facts.looks_back) raw.feedSampler(this.#sequence.queue, this.#handle, tokens, true);
  }

  /** Feeds a new sampler all tokens of the context. */
  #feedAll(): void {
    if (!this.#facts.looks_back) return;
    const { queue } = this.#sequence;
    const known = this.#sequence.knownTokens();
    raw.feedSampler(queue, this.#handle, known.slice(0, this.#given), false);
    raw.feedSampler(queue, this.#handle, known.slice(this.#given), true);
  }

  /** The program reads no further for now: what the server goes on with is undone. */
  pause(): void {
    this.#run.retract();
  }

  /** The generation has ended. */
  close(): void {
    this.pause();
    if (!this.#closed && (this.#facts.has_state || this.#facts.in_layers)) {
      this.#state ??= raw.readState(this.#sequence.queue, this.#handle);
    }
    this.#closed = true;
    this.#sequence.closeSampler(this.#handle);
    if (this.#matcher !== null) {
      this.#ended = this.#matcher.isAccepting;
      this.#matcher.close();
      this.#matcher = null;
    }
  }
}
