/** The two ways to choose a generation's tokens: by the program, or by the server. */

import { DeviceSampler } from "./device.ts";
import { type Attend, type Given, ProgramSampler, valuesJson } from "./device_program.ts";
import { isPieError } from "./errors.ts";
import type { Grammar, Matcher } from "./grammar.ts";
import * as raw from "./raw.ts";
import { type Guessing, Run, SCARCE, type WholeText } from "./run.ts";
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

/** Chooses the tokens of one generation, each after all that is in the sequence by then. */
export interface Chooser {
  /** Whether the text may end here: always without a grammar. */
  readonly isComplete: boolean;
  /** The next token, null at the end of the grammar. `most` may be chosen ahead. */
  nextToken(most: number, stops: Set<number>): Promise<number | null>;
  /** All tokens at once, if the server goes on by itself; else the next one, or none. */
  nextTokens(most: number, stops: Set<number>): Promise<number[]>;
  /** All tokens at once with their text; null if the server does not go on by itself. */
  wholeText(
    most: number,
    stops: Set<number>,
    ends: string[],
    toClient: boolean,
  ): Promise<WholeText | null>;
  /** As `nextToken`, with what is known about the token. */
  choose(): Promise<Choice>;
  /** Refuses tokens that the program has chosen itself, if they are not allowed. */
  check(tokens: number[]): void;
  /** Takes note of tokens that the program has chosen itself, after `check`. */
  note(tokens: number[]): void;
  /** The program reads no further for now: what the server goes on with is undone. */
  pause(): void;
  /** The generation has ended. */
  close(): void;
}

/** A program's own rule: a token, of the most likely ones and their probabilities at temperature 1. */
export type Rule = (tokens: number[], probabilities: number[]) => number;

export const CHOOSE_AND_GRAMMAR =
  "`choose` and a grammar: within a grammar the server chooses. Leave one out, or walk through the" +
  " grammar yourself: `await grammar.matcher(model)`";

export const ATTEND_ALONE =
  "`attend` acts where the server goes on by itself: not with `choose`, a grammar, contexts beside, or" +
  " without `runAhead`";

/** How the tokens of a generation are to be chosen. */
export interface Choosing {
  sampler: Sampler | DeviceSampler | ProgramSampler;
  grammar: Grammar | null;
  /** Whether tokens that the grammar leaves no choice about are taken without the model. */
  forced: boolean;
  /** Other texts, which get the same tokens; the sampler mixes their logits in. */
  beside: Sequence[];
  /** The program's own rule, instead of a sampler. */
  choose?: Rule;
  /** How the server may guess tokens. */
  guessing: Guessing;
  /** A program that chooses what layers read, in the server's runs. */
  attend?: Attend;
}

/**
 * Makes the chooser of a generation.
 *
 * @param bySteps whether the program reads step by step, and so may look at distributions.
 */
export async function makeChooser(
  choosing: Choosing,
  sequence: Sequence,
  bySteps: boolean,
): Promise<Chooser> {
  const { model } = sequence;
  const { sampler, grammar, choose, attend } = choosing;
  if (choose !== undefined) return new OwnChoice(sequence, choose);
  if (attend !== undefined && bySteps) {
    throw new TypeError(
      "`attend` acts where the server goes on by itself: read the generation by its `collect` and" +
        " `stream` methods",
    );
  }
  if (!("onDevice" in sampler) || grammar !== null || attend !== undefined) {
    const device = "onDevice" in sampler ? sampler.onDevice() : sampler;
    const found = device instanceof DeviceSampler ? device.resolved() : device;
    const matcher = grammar === null ? null : await grammar.matcher(model);
    return new DeviceChoice(sequence, found, matcher, choosing);
  }
  const own = new OwnChoice(sequence, samplerRule(sampler), sampler.size);
  if (bySteps || !model.samples) return own;
  try {
    return new DeviceChoice(sequence, sampler.onDevice(), null, choosing);
  } catch (error) {
    if (!isPieError(error, ...SCARCE)) throw error;
    return own; // all of the server's samplers are in use
  }
}

/** The program's own choice, from the distributions that the server sends. */
class OwnChoice implements Chooser {
  readonly isComplete = true;

  constructor(
    readonly sequence: Sequence,
    readonly rule: Rule,
    readonly size = DISTRIBUTION_SIZE,
  ) {}

  async nextToken(): Promise<number> {
    return (await this.choose()).token as number;
  }

  async nextTokens(): Promise<number[]> {
    return [await this.nextToken()];
  }

  async wholeText(): Promise<null> {
    return null;
  }

  async choose(): Promise<Choice> {
    const seen = await this.sequence.nextDistribution(this.size);
    const token = this.rule(seen.tokens, seen.probabilities);
    if (!Number.isInteger(token)) {
      throw new TypeError(`\`choose\` returned ${token}: it must return a token, such as one of \`tokens\``);
    }
    return { token, distribution: seen };
  }

  check(): void {}
  note(): void {}
  pause(): void {}
  close(): void {}
}

/** A sampler's choice, with draws that begin at its seed. */
function samplerRule(sampler: Sampler): Rule {
  const random = sampler.seed === undefined ? Math.random : seeded(sampler.seed);
  return (tokens, probabilities) => sampler.choose(tokens, probabilities, random);
}

/** Random numbers from a seed: SplitMix64. */
function seeded(seed: number | bigint): () => number {
  let state = BigInt.asUintN(64, BigInt(seed));
  return () => {
    state = BigInt.asUintN(64, state + 0x9e3779b97f4a7c15n);
    let mixed = state;
    mixed = BigInt.asUintN(64, (mixed ^ (mixed >> 30n)) * 0xbf58476d1ce4e5b9n);
    mixed = BigInt.asUintN(64, (mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn);
    return Number((mixed ^ (mixed >> 31n)) >> 11n) / 2 ** 53;
  };
}

/** The server's choice, within a grammar if there is one. */
export class DeviceChoice implements Chooser {
  #sequence: Sequence;
  #sampler: DeviceSampler | ProgramSampler;
  #matcher: Matcher | null;
  #forced: boolean;
  #beside: Sequence[];
  #guessing: Guessing;
  #attend: Attend | undefined;
  #told: number; // tokens that have to run for it
  #waiting: number[] = []; // forced tokens that the matcher has consumed
  #run: Run;
  #given: number; // tokens before the first choice
  #handle: number;
  #state: number | null = null; // a future of a device program's, once the sampler is closed
  #closed = false;
  #ended = true; // whether the text might end where the matcher was closed

  constructor(
    sequence: Sequence,
    sampler: DeviceSampler | ProgramSampler,
    matcher: Matcher | null,
    { forced, beside, guessing, attend }: Choosing,
  ) {
    this.#sequence = sequence;
    this.#sampler = sampler;
    this.#matcher = matcher;
    this.#forced = forced;
    this.#beside = beside;
    this.#guessing = guessing;
    this.#attend = attend;
    this.#told = attend?.told ?? 0;
    this.#run = new Run(sequence);
    this.#given = sequence.knownTokens().length;
    try {
      this.#handle = sequence.openSampler(this.#parameters());
    } catch (error) {
      matcher?.close();
      throw error;
    }
    this.#feedAll();
  }

  #parameters(): string {
    const text = this.#sampler.toJSON();
    if (this.#attend === undefined) return text;
    const attend = `"attend": ${this.#attend.toJSON()}}`;
    return text === "{}" ? `{${attend}` : `${text.slice(0, -1)}, ${attend}`;
  }

  get isComplete(): boolean {
    return this.#matcher === null ? this.#ended : this.#matcher.isAccepting;
  }

  async nextToken(most: number, stops: Set<number>): Promise<number | null> {
    if (!this.#run.goesOn() && !(await this.#start(most, stops))) return (await this.choose()).token;
    const token = await this.#run.next();
    return token === null ? this.nextToken(most, stops) : token;
  }

  async nextTokens(most: number, stops: Set<number>): Promise<number[]> {
    if (this.#run.goesOn() || (await this.#start(most, stops))) {
      const tokens = await this.#run.rest();
      if (tokens.length) return tokens;
    }
    const token = await this.nextToken(most, stops);
    return token === null ? [] : [token];
  }

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

  /** Starts a run after all that is pending; whether there is one now. */
  async #start(most: number, stops: Set<number>): Promise<boolean> {
    // Each token's mask depends on the one before; and a run goes on with one text alone.
    if (this.#matcher !== null || this.#beside.length || most < 2) return false;
    const { drafts } = this.#guessing;
    if (drafts) {
      this.#run.retract();
      await drafts.follow(this.#sequence.knownTokens());
    }
    await this.#prepare();
    const needed = this.#attend !== undefined;
    const started = this.#run.start(this.#handle, most, stops, this.#guessing, needed);
    if (started) drafts?.start(this.#run, this.#parameters(), this.#guessing.most);
    return started;
  }

  async choose(): Promise<Choice> {
    const matcher = this.#matcher;
    if (matcher !== null) {
      if (this.#force(matcher)) {
        return { token: this.#waiting.shift() as number, distribution: new Distribution([], []) };
      }
      if (matcher.isFinished) return { token: null, distribution: new Distribution([], []) };
    }
    const future = await this.#queueChoice();
    const answer = this.#sequence.outcome(future, raw.takeSample);
    const [token, logprob, top, logprobs] = await answer.catch((error: unknown) => {
      for (const other of this.#beside) other.recover(error);
      throw error;
    });
    for (const other of this.#beside) other.ran(0);
    return { token, logprob, distribution: new Distribution(top, logprobs.map(Math.exp)) };
  }

  /** The embed after which the next token is chosen, after all that is pending. */
  async #prepare(): Promise<number> {
    this.#run.retract();
    if (this.#run.undone) {
      this.#run.undone = false;
      if (this.#sampler.counts) this.#renew();
    }
    const embed = await this.#sequence.outputEmbed(this.#told);
    this.#told = 0;
    return embed;
  }

  /** The future of the next token, after all that is pending has been queued. */
  async #queueChoice(): Promise<number> {
    const { queue } = this.#sequence;
    const embed = await this.#prepare();
    for (const other of this.#beside) {
      raw.mixLogits(other.queue, await other.outputEmbed(), queue, this.#handle);
    }
    if (this.#matcher === null) return raw.sample(queue, embed, this.#handle);
    return raw.sampleConstrained(queue, embed, this.#handle, this.#matcher.handle);
  }

  /** Replaces the sampler, which has counted choices that were undone. */
  #renew(): void {
    const sampler = this.#sampler;
    if (sampler instanceof ProgramSampler && sampler.hasState) {
      throw new Error(
        "tokens of this generation were undone, and its device program counts tokens and has state:" +
          " begin a new generation",
      );
    }
    const seed = sampler instanceof ProgramSampler ? sampler.seed : sampler.options.seed;
    if (seed !== undefined) this.#sampler = this.#sampler.seeded(BigInt(seed) + 1n); // other draws
    this.#sequence.closeSampler(this.#handle);
    this.#handle = this.#sequence.openSampler(this.#parameters());
    this.#feedAll();
  }

  /** What the device program that chooses was given, with its state after the tokens so far. */
  async state(): Promise<Record<string, Given>> {
    const sampler = this.#sampler;
    if (!(sampler instanceof ProgramSampler)) throw new Error("no device program chooses");
    if (!sampler.hasState) return { ...sampler.given };
    if (!this.#closed) this.#run.retract();
    this.#state ??= this.#closed ? null : raw.readState(this.#sequence.queue, this.#handle);
    if (this.#state === null) throw new Error("the state of this generation was read already");
    const future = this.#state;
    this.#state = null;
    return sampler.after(await this.#sequence.outcome(future, raw.takeText));
  }

  /** Gives the device program that chooses other values of some names, from the next token on. */
  put(values: Record<string, Given>): void {
    if (!(this.#sampler instanceof ProgramSampler)) throw new Error("no device program chooses");
    if (this.#closed) throw new Error("the generation has ended");
    const again = this.#sampler.givenAgain(values);
    this.#run.retract();
    raw.writeState(this.#sequence.queue, this.#handle, valuesJson(values));
    this.#sampler = again;
  }

  /** Whether a forced token waits; asks the grammar for more of them. */
  #force(matcher: Matcher): boolean {
    if (!this.#waiting.length && this.#forced) {
      const tokens = matcher.forced();
      if (tokens.length) {
        matcher.advance(tokens);
        this.#feed(tokens);
        this.#waiting.push(...tokens);
      }
    }
    return this.#waiting.length > 0;
  }

  check(tokens: number[]): void {
    if (this.#matcher === null) return;
    const allowed = this.#matcher.countAllowed(tokens);
    if (allowed < tokens.length) {
      throw new RangeError(`the grammar does not allow token ${tokens[allowed]} here`);
    }
  }

  note(tokens: number[]): void {
    this.#matcher?.advance(tokens);
    this.#feed(tokens);
  }

  #feed(tokens: number[]): void {
    if (this.#sampler.looksBack) raw.feedSampler(this.#sequence.queue, this.#handle, tokens, true);
  }

  /** Feeds a new sampler all tokens of the context. */
  #feedAll(): void {
    if (!this.#sampler.looksBack) return;
    const { queue } = this.#sequence;
    const known = this.#sequence.knownTokens();
    raw.feedSampler(queue, this.#handle, known.slice(0, this.#given), false);
    raw.feedSampler(queue, this.#handle, known.slice(this.#given), true);
  }

  pause(): void {
    this.#run.retract();
    this.#guessing.drafts?.end(this.#sequence.knownTokens());
  }

  close(): void {
    this.pause();
    if (!this.#closed && this.#sampler instanceof ProgramSampler && this.#sampler.hasState) {
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
