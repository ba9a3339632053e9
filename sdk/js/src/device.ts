/**
 * Device programs: a rule for choosing tokens, a text in the server's subset of Python, that runs where
 * the model runs.
 *
 *     const mirostat = device.program(`
 *       def mirostat(logits, state):
 *           surprise = -logits.log_softmax() / log(2)
 *           token = draw(logits.where(surprise <= state.mu, -inf))
 *           state.mu -= rate * (surprise[token] - 5.0)
 *           return token
 *     `, { rate: 0.1 });
 *     const text = await context.generate(mirostat({ mu: 10 }), { maxTokens: 64 }).collectText();
 *
 * The last function of a text is the program; it may call the others, and the rules of the library. A
 * mistake is a PieError with line and column, when the first token is asked for.
 * `docs/device-programs.md` has examples and the operations.
 */

/** State from a file of tensors that the user has uploaded: its name, `/`, and the tensor's. */
export type Uploaded = { readonly tensor: string };
/** A value that a program is given by name: a number is a float there, a BigInt an int. */
export type Given = number | boolean | bigint | Uploaded | readonly Given[];
/** A value that a text names: whole numbers are ints. */
export type Constant = number | boolean | bigint | string | null | readonly Constant[] | Constants;
/** Values that a text names. */
export interface Constants {
  [name: string]: Constant;
}

/** Values by name. */
export type State = Record<string, Given>;

/** A device program with what it was given: `context.generate` takes it as a sampler. */
export class ProgramSampler {
  constructor(
    /** Its name in the server's library, or its text. */
    readonly program: string | ProgramText,
    readonly given: Readonly<State> = {},
    readonly seed?: number | bigint,
    readonly logprobs: number = 0,
  ) {}

  /** The same sampler with another seed. */
  seeded(seed: number | bigint | undefined): ProgramSampler {
    return new ProgramSampler(this.program, this.given, seed, this.logprobs);
  }

  /** The parameters, as `raw.createSampler` takes them. */
  toJSON(): string {
    const { logprobs } = this;
    return object({ ...sent(this.program, this.given), seed: seedJson(this.seed), logprobs: `${logprobs}` });
  }
}

/** Of a program: the same seed gives the same tokens, and most likely tokens that steps return. */
export interface ProgramOptions {
  seed?: number | bigint;
  logprobs?: number;
}

/** Chooses tokens where the model runs; called with its state, it gives a sampler. */
export type DeviceProgram = (given?: State, options?: ProgramOptions) => ProgramSampler;

/** A text, and values that it names. */
export class ProgramText {
  constructor(
    readonly text: string,
    readonly constants: Constants,
  ) {}
}

/**
 * Makes a device program of a text, whose last function takes `logits` and, if it has any, `state`, and
 * returns the token. `logits` is float `[vocabulary]`, with minus infinity where a grammar rules a token
 * out.
 *
 * @param constants values that the text names; each makes another program.
 */
export function program(text: string, constants: Constants = {}): DeviceProgram {
  return named(new ProgramText(text, constants));
}

/** The program of a name: one of the server's library, or one of yours that was uploaded. */
export function named(program: string | ProgramText): DeviceProgram {
  return (given, { seed, logprobs } = {}) => new ProgramSampler(program, given, seed, logprobs);
}

// As the server takes them: JSON, whose numbers with a point are floats

/** A value whose numbers are as JavaScript writes them: whole ones are ints. */
export function plainJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(plainJson).join(", ")}]`;
  if (typeof value === "number" || typeof value === "bigint") return String(value);
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  return object(Object.fromEntries(Object.entries(value).map(([name, one]) => [name, plainJson(one)])));
}

/** The seed as JSON, modulo 2^64. */
export function seedJson(seed: number | bigint | undefined): string | undefined {
  return seed === undefined ? undefined : String(BigInt.asUintN(64, BigInt(seed)));
}

/** An object of members that are JSON; those that are undefined are left out. */
export function object(members: Record<string, string | undefined>): string {
  const found = Object.entries(members).filter(([, value]) => value !== undefined);
  return `{${found.map(([name, value]) => `${JSON.stringify(name)}: ${value}`).join(", ")}}`;
}

function sent(program: string | ProgramText, given: Readonly<State>): Record<string, string> {
  const isText = program instanceof ProgramText;
  return {
    program: JSON.stringify(isText ? [["program", 1, program.text]] : program),
    constants: plainJson(isText ? program.constants : {}),
    given: object(Object.fromEntries(Object.entries(given).map(([name, one]) => [name, floats(one)]))),
  };
}

function floats(value: Given): string {
  if (typeof value === "object" && "tensor" in value) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(floats).join(", ")}]`;
  if (typeof value === "bigint" || typeof value === "boolean") return String(value);
  if (typeof value !== "number") throw new TypeError(`${value} can't be given: numbers, booleans and lists`);
  return Number.isInteger(value) && Math.abs(value) < 1e21 ? `${value}.0` : String(value);
}
