/** A context of a smaller model, whose run drafts what the run of another context guesses. */

import { alike, NO_GUESSES, Run } from "./run.ts";
import type { Sequence } from "./sequence.ts";

/** Drafts for the runs of a generation, one after the other. */
export class Drafts {
  #sequence: Sequence;
  #run: Run | null = null;
  #sampler = 0; // of the run

  /** Takes the smaller model's sequence, whose text becomes that of the generation. */
  constructor(sequence: Sequence) {
    this.#sequence = sequence;
  }

  /** Gives the sequence a text, of which it keeps what it has. */
  async follow(text: number[]): Promise<void> {
    this.end(text);
    const sequence = this.#sequence;
    sequence.retract();
    sequence.truncate(alike([...sequence.tokens, ...sequence.pending], text));
    sequence.pending.push(...text.slice(sequence.tokens.length + sequence.pending.length));
    await sequence.outputEmbed();
  }

  /**
   * Has a run guess what one of this sequence chooses, or nothing without room for that.
   *
   * @param run that has just been started behind the same text.
   * @param parameters of its sampler.
   * @param guesses at a time.
   */
  start(run: Run, parameters: string, guesses: number): void {
    const sequence = this.#sequence;
    const room = sequence.model.maxPosition - sequence.tokens.length - sequence.shift;
    if (room < 2) return;
    const drafting = new Run(sequence);
    this.#sampler = sequence.openSampler(parameters);
    if (drafting.start(this.#sampler, Math.min(run.most, room), [], NO_GUESSES, false)) {
      this.#run = drafting;
      run.guessFrom(drafting, guesses);
    } else sequence.closeSampler(this.#sampler);
  }

  /** The other run is over, behind some text: what has been drafted of it stays. */
  end(text: number[]): void {
    const run = this.#run;
    this.#run = null;
    if (run === null) return;
    run.keep(text.slice(this.#sequence.tokens.length));
    this.#sequence.closeSampler(this.#sampler);
  }
}
