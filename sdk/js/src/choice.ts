/** How a generation's tokens are chosen by the server. */

import type { ProgramSampler } from "./device.ts";
import type { Grammar, Matcher } from "./grammar.ts";
import * as raw from "./raw.ts";
import { Run, type WholeText } from "./run.ts";
import { Distribution, type Sampler } from "./sample.ts";
import type { Sequence } from "./sequence.ts";

/** A token, null where a grammar has come to its end, and what is known about it. */
export interface Choice {
  token: number | null;
  /** The most likely tokens, as many as were asked for. */
  distribution: Distribution;
  /** The token's log-probability at temperature 1, if the server chose it. */
  logprob?: number;
}

/** The distribution where none is known. */
export const NONE = new Distribution([], []);

/** How the tokens of a generation are to be chosen. */
export interface Choosing {
  sampler: Sampler | ProgramSampler;
  grammar: Grammar | null;
  /** True if tokens that the grammar leaves no choice about are taken without the model. */
  forced: boolean;
  /** How many tokens the server may guess at a time. */
  speculate: number;
}

/** The needs of a sampler's device programs, as the server tells them. */
interface Facts {
  looks_back: boolean;
  counts: boolean;
  has_state: boolean;
}

/** The server's choice, within a grammar if there is one. */
export class DeviceChoice {
  #sequence: Sequence;
  #sampler: Sampler | ProgramSampler;
  #matcher: Matcher | null;
  #choosing: Choosing;
  #logprob = NaN; // of the last choice by itself
  #waiting: number[] = []; // forced tokens that the matcher has consumed
  #run: Run;
  #given: number; // tokens before the first choice
  #handle = 0; // of the sampler; 0 if there is none
  #facts: Facts = { looks_back: false, counts: false, has_state: false };
  #ended = true; // whether the text might end where the matcher was closed

  constructor(
    sequence: Sequence,
    matcher: Matcher | null,
    choosing: Choosing,
  ) {
    this.#sequence = sequence;
    this.#sampler = choosing.sampler;
    this.#matcher = matcher;
    this.#choosing = choosing;
    this.#run = new Run(sequence);
    this.#given = sequence.knownTokens().length;
    try {
      this.#openSampler();
      this.#facts = JSON.parse(raw.samplerFacts(sequence.queue, this.#handle));
    } catch (error) {
      matcher?.close();
      this.#closeSampler();
      throw error;
    }
    this.#feedAll();
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
    return this.#sampler.logprobs > 0 || this.#facts.counts;
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
    return this.#run.logprobs(count) ?? [this.#logprob];
  }

  /** Starts a run after all that is pending; whether there is one now. */
  async #start(most: number, stops: Set<number>): Promise<boolean> {
    if (this.#matcher !== null || most < 2) return false; // each token's mask depends on the one before
    await this.#prepare();
    return this.#run.start(this.#handle, most, stops, this.#choosing.speculate);
  }

  /** As `nextToken`, with what is known about the token. */
  async choose(): Promise<Choice> {
    const matcher = this.#matcher;
    if (matcher !== null) {
      if (this.#force(matcher)) {
        this.#logprob = NaN;
        return { token: this.#waiting.shift() as number, distribution: NONE };
      }
      if (matcher.isFinished) return { token: null, distribution: NONE };
    }
    const { queue } = this.#sequence;
    const embed = await this.#prepare();
    const future = matcher
      ? raw.sampleConstrained(queue, embed, this.#handle, matcher.handle)
      : raw.sample(queue, embed, this.#handle);
    const [token, logprob, top, logprobs] = await this.#sequence.outcome(future, raw.takeSample);
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
    return this.#sequence.outputEmbed();
  }

  /** Replaces the sampler, which has counted choices that were undone. */
  #renew(): void {
    if (this.#facts.has_state) {
      throw new Error(
        "tokens of this generation were undone, and its device program counts tokens and has state:" +
          " begin a new generation",
      );
    }
    const { seed } = this.#sampler;
    if (seed !== undefined) this.#sampler = this.#sampler.seeded(BigInt(seed) + 1n); // other draws
    this.#closeSampler();
    this.#openSampler();
    this.#feedAll();
  }

  #openSampler(): void {
    this.#handle = raw.createSampler(this.#sequence.queue, this.#sampler.toJSON());
  }

  #closeSampler(): void {
    const handle = this.#handle;
    this.#handle = 0;
    if (handle) raw.destroySampler(this.#sequence.queue, handle);
  }

  /** True if a forced token waits; asks the grammar for more of them. */
  #force(matcher: Matcher): boolean {
    if (!this.#waiting.length && this.#choosing.forced) {
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

  /** The generation has ended. A second call does nothing. */
  close(): void {
    this.pause();
    this.#closeSampler();
    if (this.#matcher !== null) {
      this.#ended = this.#matcher.isAccepting;
      this.#matcher.close();
      this.#matcher = null;
    }
  }
}
