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
export type Given = number | boolean | bigint | PerToken | Uploaded | readonly Given[];
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

  /** The same sampler with other values of some names. */
  givenAgain(values: Readonly<State>): ProgramSampler {
    return new ProgramSampler(this.program, { ...this.given, ...values }, this.seed, this.logprobs);
  }

  /** The parameters, as `raw.createSampler` takes them. */
  toJSON(): string {
    const { logprobs } = this;
    return object({ ...sent(this.program, {}, this.given), seed: seedJson(this.seed), logprobs: `${logprobs}` });
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

// The stage `attend`

/**
 * A program of the stage `attend` with what it was given: `context.generate(rule, { attend })`. Of the
 * library: `new Attend("sinks", { first: 4, window: 1020 })`, by the names and constants of
 * `pie_py/device_programs/rules/attention.py`.
 */
export class Attend {
  constructor(
    readonly program: string | ProgramText,
    readonly constants: Constants = {},
    readonly given: Readonly<State> = {},
    /** Of a program in the layers, those before which it runs. */
    readonly at: readonly number[] = [],
    /** Whether such a one runs for the prompt's tokens, too, or the last of them. */
    readonly prompt: boolean | "last" = false,
  ) {}

  /** The parameter `attend` of `raw.createSampler`. */
  toJSON(): string {
    const layers = this.at.length ? { at: JSON.stringify(this.at), prompt: JSON.stringify(this.prompt) } : {};
    return object({ ...sent(this.program, this.constants, this.given), ...layers });
  }
}

/** A value for each token of the context; see `perToken`. */
export class PerToken {
  constructor(
    readonly value: number | boolean | bigint,
    readonly byHead: boolean,
  ) {}
}

/**
 * State of the stage `attend` that has a value for each token, or for each head's tokens: at first, and
 * of new ones.
 */
export function perToken(value: number | boolean | bigint, { byHead = false } = {}): PerToken {
  return new PerToken(value, byHead);
}

/** Chooses what layers read; called with its state, it gives what `generate` takes. */
export type AttendProgram = (given?: State) => Attend;

/**
 * Makes a program of the stage `attend` of a text: called once for each layer and generated token.
 *
 *     const recent = device.attend(`def recent(): return iota(TOKENS) >= tokens() - most`, { most: 1024 });
 *
 * The parameters of its last function say what it is given. `scores`, float `[heads, pages]`: the
 * largest product of the query with a key that each page can have; it returns which pages the layer
 * reads, bool `[pages]`. `weights`, float `[heads, tokens]`: what the layer has just given each token; it
 * returns which tokens the layer still reads in the steps that follow, bool `[tokens]`, and what it drops
 * does not come back. Neither: it returns which tokens a layer reads. What it returns may be by head,
 * `[heads, pages]` or `[heads, tokens]`: heads that share keys read what one of them keeps. Beside them,
 * `state`. The newest token is always read.
 *
 * A prompt reads all. With `weights` the program is called for it, too, once in each layer, as `step()`
 * is 0: they are then those of the prompt's last inputs, as many as the constant `window` says (1), added
 * up; with 0, of all. Tokens among these that have run before run again.
 */
export function attend(text: string, constants: Constants = {}): AttendProgram {
  return (given) => new Attend(new ProgramText(text, constants), {}, given);
}

/**
 * Makes a program in the layers of a text, which `generate` takes as `attend`: called before each of the
 * layers `at` (-1 is the last one), once for each generated token, and with `prompt` for each of the
 * prompt, or its "last" one. All its layers have one state together, which `generation.state()` tells, and a
 * sampler's program whose third parameter is `layers` has as `layers.NAME`. Of the library:
 * `new Attend("steer", { strength: 4 }, { vector }, [12], true)`, by the names of
 * `pie_py/device_programs/rules/layers.py`.
 *
 * Its last function takes `residual`, float `[hidden]`, and `state` if it has any, and returns what the
 * layer is given instead. `lens(residual)` are the logits that the last norm and the head would make of it.
 */
export function layers(text: string, at: readonly number[], prompt: boolean | "last" = false, constants: Constants = {}): AttendProgram {
  return (given) => new Attend(new ProgramText(text, constants), {}, given, at, prompt);
}

// As the server takes them: JSON, whose numbers with a point are floats

/** Values by name, as `raw.writeState` takes them. */
export function valuesJson(values: Readonly<State>): string {
  return object(Object.fromEntries(Object.entries(values).map(([name, one]) => [name, floats(one)])));
}

/** Values that the server tells, in which a whole number is a BigInt. */
export function readValues(text: string): State {
  const exact = text.replace(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g, (found) =>
    /^-?\d+$/.test(found) ? `"${found}"` : found,
  );
  return JSON.parse(exact, (_, value) => {
    if (typeof value === "string") return BigInt(value);
    return value === null ? -Infinity : value;
  });
}

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

function sent(
  program: string | ProgramText,
  constants: Constants,
  given: Readonly<State>,
): Record<string, string> {
  const isText = program instanceof ProgramText;
  return {
    program: JSON.stringify(isText ? [["program", 1, program.text]] : program),
    constants: plainJson(isText ? program.constants : constants),
    given: valuesJson(given),
  };
}

function floats(value: Given): string {
  if (typeof value === "object" && "tensor" in value) return JSON.stringify(value);
  if (value instanceof PerToken) return `{"per_token": ${floats(value.value)}, "by_head": ${value.byHead}}`;
  if (Array.isArray(value)) return `[${value.map(floats).join(", ")}]`;
  if (typeof value === "bigint" || typeof value === "boolean") return String(value);
  if (typeof value !== "number") throw new TypeError(`${value} can't be given: numbers, booleans and lists`);
  return Number.isInteger(value) && Math.abs(value) < 1e21 ? `${value}.0` : String(value);
}
