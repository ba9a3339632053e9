/**
 * Device programs: a rule for choosing tokens, in plain JavaScript, that runs where the model runs.
 *
 *     const mirostat = device.program((logits, state) => {
 *       const surprise = logits.logSoftmax().neg().div(Math.LN2);
 *       const token = device.draw(logits.where(surprise.le(state.mu), -Infinity));
 *       state.mu = state.mu.sub(surprise.at(token).sub(5).mul(0.1));
 *       return token;
 *     });
 *     const text = await context.generate(mirostat({ mu: 10 })).collectText();
 *
 * The function is called once, with tensors that have kinds and sizes and no values, and what it
 * does with them is recorded. Kinds are float (float32), int (64 bits) and bool; a mistake is a
 * `TypeError` at the line that makes it. JavaScript's numbers go with either; a number that is given
 * by name is a float, and `device.int(5)` an int. docs/device-programs.md has the operations.
 */

import {
  HEADS,
  MOST_BESIDE,
  MOST_NEWEST,
  OPERATIONS,
  PAGES,
  REMEMBERED,
  SIZES,
  TOKENS,
  VOCABULARY,
} from "./device_language.ts";

export { HEADS, PAGES, TOKENS, VOCABULARY };

/** What the elements of a value are: float, int, or bool. */
export type Kind = 0 | 1 | 2;
const [FLOAT, INT, BOOL] = [0, 1, 2] as const;
const FEW = 64; // kinds and sizes of what one function was given, for which its recording is kept
const NAMES = ["float", "int", "bool"];
const LETTERS: Record<string, Kind> = { f: FLOAT, i: INT, b: BOOL };

/** The kind and the sizes of a value; `VOCABULARY` is the number of the model's tokens. */
export interface Type {
  readonly kind: Kind;
  readonly shape: readonly number[];
}

/** An operation that does not go with its operands. */
export class Mistake extends TypeError {}

type Value = Tensor | number | boolean;
/**
 * What a program may be given by name: numbers (float), whole numbers (also a BigInt), bools, or
 * lists of them.
 */
export type Given = number | boolean | bigint | WholeNumber | readonly Given[];

/** A whole number of 64 bits, for names of a program that are to be int. */
export class WholeNumber {
  constructor(readonly value: number | bigint) {
    const whole = typeof value === "bigint" ? BigInt.asIntN(64, value) === value : Number.isSafeInteger(value);
    if (!whole) throw new Mistake(`${value} is no whole number of 64 bits; beyond 2^53 give a BigInt`);
  }
}

/** A whole number, or a list of them, that a program is given by name. */
export function int(value: number | bigint): WholeNumber;
export function int(value: readonly (number | bigint)[]): WholeNumber[];
export function int(
  value: number | bigint | readonly (number | bigint)[],
): WholeNumber | WholeNumber[] {
  if (typeof value === "object") return value.map((one) => new WholeNumber(one));
  return new WholeNumber(value);
}

interface Node {
  operation: string;
  operands: number[];
  attributes: number[];
  type: Type;
}

/** What became of a function. */
interface Recorded {
  text: string; // canonical
  operations: Set<string>;
  beside: number; // contexts beside whose logits it reads
}

/** What a function does while it is called: each operation once. */
class Recording {
  static current: Recording | null = null;
  readonly nodes: Node[] = [];
  readonly names: Map<string, { number: number; type: Type }>;
  #known = new Map<string, number>();

  constructor(types: Record<string, Type>) {
    const sorted = Object.keys(types).sort(byCodePoint);
    this.names = new Map(sorted.map((name, number) => [name, { number, type: types[name] as Type }]));
  }

  add(operation: string, operands: Tensor[], attributes: number[]): Tensor {
    const numbers = operands.map((one) => one.number);
    return this.#put(operation, numbers, attributes, () =>
      resultType(operation, operands.map((one) => one.type), attributes),
    );
  }

  read(name: string): Tensor {
    const { number, type } = this.names.get(name) as { number: number; type: Type };
    return this.#put("state", [], [number], () => type);
  }

  #put(operation: string, operands: number[], attributes: number[], type: () => Type): Tensor {
    const key = JSON.stringify([operation, operands, attributes]);
    let number = this.#known.get(key);
    if (number === undefined) {
      number = this.nodes.length;
      this.nodes.push({ operation, operands, attributes, type: type() });
      this.#known.set(key, number);
    }
    return new Tensor(this, number);
  }

  /** What was recorded, as far as the token (or what is kept) and the next state need it. */
  finish(token: Tensor, following: Map<string, Tensor>, result: "token" | "keep"): Recorded {
    const order = new Map<number, number>();
    const changed = [...this.names].filter(([name]) => {
      const kept = following.get(name);
      return kept !== undefined && kept.number !== this.read(name).number;
    });
    const next = changed.map(([name]) => (following.get(name) as Tensor).number);
    for (const root of [token.number, ...next]) this.#visit(root, order);
    const place = (number: number) => order.get(number) as number;
    const nodes = [...order.keys()].map((number) => this.nodes[number] as Node);
    const text = JSON.stringify({
      state: [...this.names].map(([name, { type }]) => [name, type.kind, type.shape]),
      nodes: nodes.map((one) => [one.operation, one.operands.map(place), one.attributes]),
      [result]: place(token.number),
      next: changed.map(([, { number }], i) => [number, place(next[i] as number)]),
    });
    const others = nodes.filter((one) => one.operation === "beside");
    const beside = 1 + Math.max(-1, ...others.map((one) => one.attributes[0] as number));
    return { text, operations: new Set(nodes.map((one) => one.operation)), beside };
  }

  /** Operands first; with a stack, for recordings are deep. */
  #visit(root: number, order: Map<number, number>): void {
    const waiting: [number, boolean][] = [[root, false]];
    for (let one = waiting.pop(); one !== undefined; one = waiting.pop()) {
      const [number, isReady] = one;
      if (order.has(number)) continue;
      if (isReady) {
        order.set(number, order.size);
        continue;
      }
      waiting.push([number, true]);
      const { operands } = this.nodes[number] as Node;
      waiting.push(...operands.map((each): [number, boolean] => [each, false]).reverse());
    }
  }
}

function byCodePoint(a: string, b: string): number {
  const [one, other] = [Array.from(a), Array.from(b)].map((s) => s.map((c) => c.codePointAt(0) ?? 0));
  for (let i = 0; i < Math.min(one!.length, other!.length); i++) {
    if (one![i] !== other![i]) return (one![i] as number) - (other![i] as number);
  }
  return one!.length - other!.length;
}

function record(operation: string, operands: Value[], attributes: number[] = []): Tensor {
  const recording = Recording.current;
  if (recording === null) {
    throw new Mistake(`${operation}: there are tensors only within a function of \`device.program\``);
  }
  const like = operands.find((one) => one instanceof Tensor) as Tensor | undefined;
  const tensors = operands.map((one) => tensor(recording, one, like?.kind));
  if (tensors.some((one) => one.recording !== recording)) {
    throw new Mistake(`${operation} of a tensor that another call of a program has made`);
  }
  return recording.add(operation, tensors, attributes);
}

/** A number of JavaScript as a constant: beside ints an int. */
function tensor(recording: Recording, value: Value, like?: Kind): Tensor {
  if (value instanceof Tensor) return value;
  if (typeof value === "boolean") return recording.add("constant", [], [BOOL, Number(value)]);
  if (typeof value !== "number") throw new Mistake(`${String(value)} is neither a tensor nor a number`);
  if (like === INT && Number.isSafeInteger(value)) return recording.add("constant", [], [INT, value]);
  if (Number.isFinite(value) && !Number.isFinite(Math.fround(value))) {
    throw new Mistake(`${value} is too large for float32`);
  }
  const bits = new Uint32Array(new Float32Array([value]).buffer)[0] as number;
  return recording.add("constant", [], [FLOAT, bits]);
}

/** A value of a device program, while it is recorded: it has a kind and sizes. */
export class Tensor {
  constructor(
    readonly recording: Recording,
    readonly number: number,
  ) {}

  /** Kind and sizes. */
  get type(): Type {
    return (this.recording.nodes[this.number] as Node).type;
  }

  /** What its elements are. */
  get kind(): Kind {
    return this.type.kind;
  }

  /** Its sizes, two at most. */
  get shape(): readonly number[] {
    return this.type.shape;
  }

  toString(): string {
    return `<${shown(this.type)}>`;
  }

  /** Refused: operators of JavaScript know no tensors. */
  [Symbol.toPrimitive](hint: string): string {
    if (hint === "string") return this.toString();
    throw new Mistake(`${this} in an operator: use its methods, such as \`a.add(b)\` and \`a.lt(b)\``);
  }

  /** Elements (of two axes: rows) at places; a place below 0 counts from the end. */
  at(place: Tensor | number): Tensor {
    const size = this.shape[0] ?? 0;
    if (typeof place === "number" && place < 0 && size < 1) {
      throw new Mistake(`${this} has no length that is known`);
    }
    const from = typeof place === "number" && place < 0 && size > 0 ? place + size : place;
    return record("gather", [this, whole(from)]);
  }

  /** From `start` up to `stop` of the last axis; either counts from the end below 0. */
  slice(start: number, stop?: number): Tensor {
    const size = this.shape[this.shape.length - 1] ?? 0;
    const known = !SIZES.has(size);
    if (!known && (start < 0 || stop === undefined || stop < 0)) {
      throw new Mistake(`a slice of ${this} needs an end, and counts from its beginning`);
    }
    const place = (n: number) => (known ? Math.min(size, n < 0 ? Math.max(0, n + size) : n) : n);
    return record("slice", [this], [place(start), place(stop ?? size)]);
  }

  /** Itself where a condition is true, else another value. */
  where(condition: Tensor, other: Value): Tensor {
    return where(condition, this, other);
  }

  /** Probabilities along the last axis. */
  softmax(): Tensor {
    return this.logSoftmax().exp();
  }

  /** The mean along the last axis, whose size is known. */
  mean(): Tensor {
    const size = this.shape[this.shape.length - 1] ?? 1;
    if (SIZES.has(size)) {
      throw new Mistake(`mean of ${this}, whose size is no number: take \`sum\` and divide it`);
    }
    return this.sum().div(size);
  }

  /** Places along the last axis, that of the largest first, equal ones in their order. */
  descending(): Tensor {
    return this.neg().argsort();
  }

  /** Places of the `count` largest, the largest first, equal ones in their order. */
  top(count: number): Tensor {
    return record("top", [this], [count]);
  }

  /** As float; true is 1. */
  toFloat(): Tensor {
    return record("cast", [this], [FLOAT]);
  }

  /** As int: the part before the point, 0 for NaN; true is 1. */
  toInt(): Tensor {
    return record("cast", [this], [INT]);
  }

  /** Whether it is not 0. */
  toBool(): Tensor {
    return record("cast", [this], [BOOL]);
  }

  /** The same elements with other sizes. */
  reshape(...sizes: number[]): Tensor {
    return record("reshape", [this], sizes);
  }

  /** With values added at places; those outside are left out. */
  scatterAdd(places: Tensor, values: Value): Tensor {
    return record("scatter_add", [this, places, like(this, values)]);
  }

  /** With a value at a place that is larger (of bools: true); those outside are left out. */
  scatterMax(places: Tensor, values: Value): Tensor {
    return record("scatter_max", [this, places, like(this, values)]);
  }

  /** With a value at a place of its one axis; the same if it lies outside. */
  withAt(place: Tensor | number, value: Value): Tensor {
    return where(iota(vector("withAt", this.type)).eq(place), value, this);
  }

  // One operation each, as docs/device-programs.md has them.
  abs(): Tensor { return record("abs", [this]); }
  neg(): Tensor { return record("neg", [this]); }
  not(): Tensor { return this.kind === INT ? this.xor(-1) : record("not", [this]); }
  floor(): Tensor { return record("floor", [this]); }
  sqrt(): Tensor { return record("sqrt", [this]); }
  exp(): Tensor { return record("exp", [this]); }
  log(): Tensor { return record("log", [this]); }
  tanh(): Tensor { return record("tanh", [this]); }
  sigmoid(): Tensor { return record("sigmoid", [this]); }
  isNan(): Tensor { return record("is_nan", [this]); }
  sum(): Tensor { return record("sum", [this]); }
  max(): Tensor { return record("max", [this]); }
  min(): Tensor { return record("min", [this]); }
  any(): Tensor { return record("any", [this]); }
  all(): Tensor { return record("all", [this]); }
  argmax(): Tensor { return record("argmax", [this]); }
  cumsum(): Tensor { return record("cumsum", [this]); }
  logSoftmax(): Tensor { return record("log_softmax", [this]); }
  sort(): Tensor { return record("sort", [this]); }
  argsort(): Tensor { return record("argsort", [this]); }
  flip(): Tensor { return record("flip", [this]); }
  transpose(): Tensor { return record("transpose", [this]); }
  add(other: Value): Tensor { return record("add", [this, other]); }
  sub(other: Value): Tensor { return record("sub", [this, other]); }
  mul(other: Value): Tensor { return record("mul", [this, other]); }
  div(other: Value): Tensor { return record("div", [this, other]); }
  pow(other: Value): Tensor { return record("pow", [this, other]); }
  floordiv(other: Value): Tensor { return record("floordiv", [this, other]); }
  mod(other: Value): Tensor { return record("mod", [this, other]); }
  and(other: Value): Tensor { return record("and", [this, other]); }
  or(other: Value): Tensor { return record("or", [this, other]); }
  xor(other: Value): Tensor { return record("xor", [this, other]); }
  shl(other: Value): Tensor { return record("shl", [this, other]); }
  shr(other: Value): Tensor { return record("shr", [this, other]); }
  lt(other: Value): Tensor { return record("lt", [this, other]); }
  le(other: Value): Tensor { return record("le", [this, other]); }
  gt(other: Value): Tensor { return record("lt", [like(this, other), this]); }
  ge(other: Value): Tensor { return record("le", [like(this, other), this]); }
  eq(other: Value): Tensor { return record("eq", [this, other]); }
  ne(other: Value): Tensor { return this.eq(other).not(); }
}

/** A number as a tensor of another one's kind, as in `device.like(x, 1).sub(x)`. */
export function like(of: Tensor, value: Value): Tensor {
  return tensor(of.recording, value, of.kind);
}

function whole(value: Tensor | number): Value {
  if (value instanceof Tensor || Recording.current === null) return value;
  return tensor(Recording.current, value, INT);
}

/** What a program was given, by name. What is assigned to a name is there at the next token. */
export type State = Record<string, Tensor> & { [name: string]: Tensor };

function stateOf(recording: Recording, changed: Map<string, Tensor>): State {
  const typeOf = (name: string) => {
    const found = recording.names.get(name);
    if (found !== undefined) return found.type;
    const names = [...recording.names.keys()].join(", ") || "nothing";
    throw new Mistake(`there is no state.${name}; the program was given ${names}`);
  };
  return new Proxy({} as State, {
    get(_, name) {
      if (typeof name === "symbol") return undefined;
      typeOf(name);
      return changed.get(name) ?? recording.read(name);
    },
    set(_, key, value: Value) {
      const name = String(key);
      const type = typeOf(name);
      const found = tensor(recording, value, type.kind);
      if (shown(found.type) !== shown(type)) {
        throw new Mistake(`state.${name} is ${shown(type)}, and becomes ${shown(found.type)}`);
      }
      changed.set(name, found);
      return true;
    },
  });
}

// What a program is given, and operations that are no method

/** 0, 1, 2 and so on, int `[size]`; by default all tokens. */
export function iota(size: number = VOCABULARY): Tensor {
  return record("iota", [], [size]);
}

/** How many tokens were chosen before, int. */
export function step(): Tensor {
  return record("step", []);
}

/** How many tokens the context has, the newest one included, int; of the stage `attend`. */
export function tokens(): Tensor {
  return record("tokens", []);
}

/** Which layer it is, from 0 on, int; of the stage `attend`. */
export function layer(): Tensor {
  return record("layer", []);
}

/** Of `[heads, n]` the largest of the heads that share keys, for each; of the stage `attend`. */
export function shared(values: Tensor): Tensor {
  return record("shared", [values]);
}

/** The newest tokens of the text, int `[count]`, the last one last; -1 before its beginning. */
export function newest(count: number): Tensor {
  return record("newest", [], [count]);
}

/** How often each token was generated, int `[vocabulary]`. */
export function counts(): Tensor {
  return record("counts", []);
}

/** The logits of one of the contexts beside, float `[vocabulary]`: see `generate`. */
export function beside(number: number): Tensor {
  return record("beside", [], [number]);
}

/** Which tokens the text before the generation has, bool `[vocabulary]`. */
export function given(): Tensor {
  return record("given", []);
}

/** `a` where a condition is true, else `b`. */
export function where(condition: Tensor, a: Value, b: Value): Tensor {
  const recording = Recording.current;
  if (recording === null) throw new Mistake("where: only within a function of `device.program`");
  const one = [a, b].find((each) => each instanceof Tensor) as Tensor | undefined;
  const kind = one === undefined ? FLOAT : one.kind;
  return record("where", [condition, tensor(recording, a, kind), tensor(recording, b, kind)]);
}

/** The smaller one; NaN if one is. */
export function minimum(a: Value, b: Value): Tensor {
  return record("minimum", [a, b]);
}

/** The larger one; NaN if one is. */
export function maximum(a: Value, b: Value): Tensor {
  return record("maximum", [a, b]);
}

/** Which of the likeliest are the fewest that have a share of all probability: bool `[n]`. */
export function nucleus(logits: Tensor, share: Value): Tensor {
  return record("nucleus", [logits, share]);
}

/** 64 bits that look random, of two ints: number `b` of the SplitMix64 sequence from `a` on. */
export function hash(a: Tensor | number, b: Tensor | number): Tensor {
  return record("hash", [whole(a), whole(b)]);
}

/** The second one behind the first, along the last axis. */
export function concat(a: Tensor, b: Tensor): Tensor {
  return record("concat", [a, b]);
}

/** The products of a matrix's rows `[n, m]` with a vector `[m]`: float `[n]`. */
export function matvec(matrix: Tensor, vector: Tensor): Tensor {
  return record("matvec", [matrix, vector]);
}

/** True at a place, bool `[size]`. */
export function oneHot(place: Tensor, size: number = VOCABULARY): Tensor {
  return iota(size).eq(place);
}

/** Random numbers, 0 up to 1, of ints: seed, step, stream and number alone decide. */
export function random(numbers: Tensor | number, stream = 0): Tensor {
  return record("random", [whole(numbers)], [stream]);
}

/** One random number, 0 up to 1. */
export function uniform(stream = 0): Tensor {
  return random(-1, stream);
}

/** As `random`, exponentially distributed. */
export function exponential(numbers: Tensor | number, stream = 0): Tensor {
  return record("exponential", [whole(numbers)], [stream]);
}

/** A token by chance: int, with the probabilities that logits `[n]` stand for. */
export function draw(logits: Tensor, stream = 0): Tensor {
  return logits.sub(exponential(iota(vector("draw", logits.type)), stream).log()).argmax();
}

/** What a function makes of `first` and one value after the other; recorded for each of them. */
export function fold<T>(make: (before: T, value: Tensor) => T, first: T, values: Tensor): T {
  const count = values.shape[0] ?? 0;
  if (count < 1) throw new Mistake(`${values} has no length that is known`);
  let found = first;
  for (let i = 0; i < count; i++) found = make(found, values.at(i));
  return found;
}

// Programs

/** A device program with what it was given: `context.generate` takes it as a sampler. */
export class ProgramSampler {
  constructor(
    readonly text: string,
    readonly given: Readonly<Record<string, Given>>,
    readonly counts: boolean,
    readonly looksBack: boolean,
    /** How many contexts beside its own it reads the logits of. */
    readonly beside: number,
    readonly seed?: number | bigint,
    readonly logprobs: number = 0,
  ) {}

  /** The same sampler with another seed. */
  seeded(seed: number | bigint | undefined): ProgramSampler {
    return this.#with(this.given, seed);
  }

  /**
   * The same sampler with other values of some names.
   *
   * @throws Mistake if one is of another kind or size than what it takes the place of.
   */
  givenAgain(values: Readonly<Record<string, Given>>): ProgramSampler {
    for (const [name, value] of Object.entries(values)) {
      const [of, found] = [typeOf(name, this.given[name] ?? value), typeOf(name, value)].map(shown);
      if (of !== found) throw new Mistake(`${name} is ${of}, and is given ${found}`);
    }
    return this.#with({ ...this.given, ...values }, this.seed);
  }

  #with(given: Readonly<Record<string, Given>>, seed: number | bigint | undefined): ProgramSampler {
    const { text, counts, looksBack, beside, logprobs } = this;
    return new ProgramSampler(text, given, counts, looksBack, beside, seed, logprobs);
  }

  /** Whether some of what it was given changes from token to token. */
  get hasState(): boolean {
    return !this.text.includes('"next":[]');
  }

  /** What a program is given that goes on with a state, as the server tells it. */
  after(state: string): Record<string, Given> {
    // Numbers beyond 2^53 become strings first: JSON.parse would round them.
    const exact = state.replace(/(?<=[[:,\s])-?\d{16,}(?=[\],}\s])/g, '"$&"');
    const again = (value: unknown, before: Given): Given => {
      if (Array.isArray(value)) return value.map((one, i) => again(one, (before as Given[])[i] as Given));
      if (typeof before === "bigint") return BigInt(value as number | string);
      if (before instanceof WholeNumber) {
        return new WholeNumber(typeof value === "string" ? BigInt(value) : (value as number));
      }
      if (typeof value === "string") return Number(value);
      return value === null ? -Infinity : (value as Given);
    };
    const changed = Object.entries(JSON.parse(exact) as Record<string, unknown>).map(([name, value]) => [
      name,
      again(value, this.given[name] as Given),
    ]);
    return { ...this.given, ...Object.fromEntries(changed) };
  }

  /** The parameters, as `raw.createSampler` takes them. */
  toJSON(): string {
    const given = valuesJson(this.given);
    const seed = this.seed === undefined ? "" : `, "seed": ${BigInt.asUintN(64, BigInt(this.seed))}`;
    const { text, logprobs } = this;
    return `{"program": ${JSON.stringify(text)}, "given": ${given}, "logprobs": ${logprobs}${seed}}`;
  }
}

/** Of a program: the same seed gives the same tokens, and most likely tokens that steps return. */
export interface ProgramOptions {
  seed?: number | bigint;
  logprobs?: number;
}

/** A function that chooses tokens where the model runs; called, it gives a sampler. */
export type DeviceProgram = (
  given?: Record<string, Given>,
  options?: ProgramOptions,
) => ProgramSampler;

/**
 * Makes a device program of a function of `logits` and, if it has any, `state`.
 *
 * `logits` is float `[vocabulary]`, with minus infinity where a grammar rules a token out. The
 * function returns the token. It is called again only for state of other kinds or sizes.
 */
export function program(make: (logits: Tensor, state: State) => Tensor): DeviceProgram {
  const known = new Map<string, Recorded>();
  return (values = {}, { seed, logprobs } = {}) => {
    const types = Object.fromEntries(
      Object.entries(values).map(([name, value]) => [name, typeOf(name, value)]),
    );
    const key = JSON.stringify(Object.entries(types).sort(([a], [b]) => byCodePoint(a, b)));
    let found = known.get(key);
    if (found === undefined) {
      found = recorded(make, types);
      if (known.size >= FEW) known.clear();
      known.set(key, found);
    }
    const has = (names: readonly string[]) => names.some((name) => found.operations.has(name));
    const counting = has(["counts", "given"]);
    const { text, beside } = found;
    return new ProgramSampler(text, values, counting, has(REMEMBERED), beside, seed, logprobs);
  };
}

function recorded(
  make: (logits: Tensor, state: State) => Tensor,
  types: Record<string, Type>,
): Recorded {
  return recording(types, (made, changed) => {
    const token = make(made.add("logits", [], []), stateOf(made, changed));
    check(token, { kind: INT, shape: [] }, "a program returns a token,");
    return made.finish(token, changed, "token");
  });
}

function check(found: unknown, wanted: Type, told: string): void {
  if (found instanceof Tensor && shown(found.type) === shown(wanted)) return;
  throw new Mistake(`the function returned ${String(found)}: ${told} ${shown(wanted)}`);
}

/** What is made with a new recording, and what becomes of its state. */
function recording<T>(
  types: Record<string, Type>,
  make: (made: Recording, changed: Map<string, Tensor>) => T,
): T {
  if (Recording.current !== null) {
    throw new Mistake("a whole program can't be called within another");
  }
  const made = new Recording(types);
  Recording.current = made;
  try {
    return make(made, new Map());
  } finally {
    Recording.current = null;
  }
}

// The stage `attend`

/** A program of the stage `attend` with what it was given: `context.generate(rule, { attend })`. */
export class Attend {
  constructor(
    readonly text: string,
    readonly given: Readonly<Record<string, Given>>,
    /** Last inputs of a prompt whose weights it takes. */
    readonly told = 0,
  ) {}

  /** The parameter `attend` of `raw.createSampler`. */
  toJSON(): string {
    return `{"program": ${JSON.stringify(this.text)}, "given": ${valuesJson(this.given)}}`;
  }
}

/** A value for each token of the context; see `perToken`. */
export class PerToken {
  constructor(
    readonly value: number | boolean | bigint | WholeNumber,
    readonly byHead: boolean,
  ) {}
}

/**
 * State of the stage `attend` that has a value for each token, or for each head's tokens: at first, and
 * of new ones.
 */
export function perToken(
  value: number | boolean | bigint | WholeNumber,
  { byHead = false } = {},
): PerToken {
  return new PerToken(value, byHead);
}

/** What a function of the stage `attend` may read; see `attend`. */
export interface Attended {
  readonly weights: Tensor;
  readonly scores: Tensor;
  readonly state: State;
}

/** A function that chooses what layers read; called with its state, it gives what `generate` takes. */
export type AttendProgram = (given?: Record<string, Given | PerToken>) => Attend;

/**
 * Makes a program of the stage `attend`: called once for each layer and generated token.
 *
 *     const window = device.attend(() => device.iota(device.TOKENS).ge(device.tokens().sub(1024)));
 *
 * What the function takes of its argument says what it is given. `scores`, float `[heads, pages]`:
 * the largest product of the query with a key that each page can have; it returns which pages the
 * layer reads, bool `[pages]`. `weights`, float `[heads, tokens]`: what the layer has just given each
 * token; it returns which tokens the layer still reads in the steps that follow, bool `[tokens]`, and
 * what it drops does not come back. Neither: it returns which tokens a layer reads. What it returns may
 * be by head, `[heads, pages]` or `[heads, tokens]`: heads that share keys read what one of them keeps.
 * Beside them, `state`. The newest token is always read.
 *
 * A prompt reads all. With `weights` the program is called for it, too, once in each layer, as `step()`
 * is 0: they are then those of the prompt's last `window` inputs, added up; with 0, of all. Tokens
 * among these that have run before run again.
 */
export function attend(make: (given: Attended) => Tensor, { window = 1 } = {}): AttendProgram {
  return (values = {}) => {
    const types: Record<string, Type> = {};
    const sent: Record<string, Given> = {};
    let told = 0;
    for (const [name, value] of Object.entries(values)) {
      if (value instanceof PerToken) {
        const { kind } = typeOf(name, value.value);
        sent[name] = value.byHead ? [[value.value]] : [value.value];
        types[name] = { kind, shape: value.byHead ? [HEADS, TOKENS] : [TOKENS] };
      } else {
        sent[name] = value;
        types[name] = typeOf(name, value);
      }
    }
    const text = recording(types, (made, changed) => {
      let axis = TOKENS;
      const kept = make({
        get weights() {
          told = window || Infinity;
          return made.add("weights", [], [window]);
        },
        get scores() {
          axis = PAGES;
          return made.add("scores", [], []);
        },
        state: stateOf(made, changed),
      });
      const byHead = kept instanceof Tensor && kept.shape.length === 2;
      check(kept, { kind: BOOL, shape: byHead ? [HEADS, axis] : [axis] }, "what is kept is");
      return made.finish(kept, changed, "keep").text;
    });
    return new Attend(text, sent, told);
  };
}

function typeOf(name: string, value: Given): Type {
  if (Array.isArray(value)) {
    const parts = value.map((one) => typeOf(name, one));
    const first = parts[0];
    if (first === undefined) throw new Mistake(`${name} is an empty list`);
    if (parts.some((one) => shown(one) !== shown(first))) {
      throw new Mistake(`${name}: a list of values of different kinds or sizes`);
    }
    return { kind: first.kind, shape: [parts.length, ...first.shape] };
  }
  if (typeof value === "boolean") return { kind: BOOL, shape: [] };
  if (value instanceof WholeNumber || typeof value === "bigint") return { kind: INT, shape: [] };
  if (typeof value === "number") return { kind: FLOAT, shape: [] };
  throw new Mistake(`${name} is ${String(value)}: a program is given numbers, bools, or lists of them`);
}

/** Values by name, as `raw.writeState` takes them. */
export function valuesJson(values: Readonly<Record<string, Given>>): string {
  const members = Object.entries(values).map(([name, one]) => `${JSON.stringify(name)}: ${written(one)}`);
  return `{${members.join(", ")}}`;
}

/** As JSON, with null for minus infinity, which it has not. */
function written(value: Given): string {
  if (Array.isArray(value)) return `[${value.map(written).join(", ")}]`;
  if (value instanceof WholeNumber) return String(value.value);
  if (value === -Infinity) return "null";
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new Mistake(`${value} can't be given: a number, or minus infinity`);
  }
  return String(value);
}

// Types, as `device_programs/language.py` has them

function shown({ kind, shape }: Type): string {
  const sizes = shape.map((n) => SIZES.get(n) ?? String(n));
  return `${NAMES[kind]} [${sizes.join(", ")}]`;
}

function resultType(name: string, operands: Type[], attributes: number[]): Type {
  const operation = OPERATIONS[name];
  if (operation === undefined) throw new Mistake(`there is no operation '${name}'`);
  const values = name === "where" ? operands.slice(1) : operands;
  const first = values[0];
  const same = ["gather", "scatter_add", "scatter_max"].includes(name) ? values.slice(0, 1) : values;
  const allowed = [...operation.takes].map((letter) => LETTERS[letter] as Kind);
  for (const one of same) {
    if (!allowed.includes(one.kind)) {
      throw new Mistake(`${name} takes ${allowed.map((k) => NAMES[k]).join(" or ")}, not ${shown(one)}`);
    }
    if (one.kind !== first!.kind) {
      throw new Mistake(`${name} of ${shown(first!)} and ${shown(one)}: cast one of them`);
    }
  }
  const kind = operation.gives ? (LETTERS[operation.gives] as Kind) : (first?.kind ?? FLOAT);
  switch (operation.rule) {
    case "map":
      return { kind, shape: first!.shape };
    case "zip":
      return { kind, shape: broadcast(name, operands) };
    case "reduce":
      return { kind, shape: withAxis(name, first!).slice(0, -1) };
    case "scan":
      return { kind, shape: withAxis(name, first!) };
  }
  return { kind: name === "nucleus" ? BOOL : kind, ...ownType(name, kind, operands, attributes) };
}

function broadcast(name: string, operands: Type[]): number[] {
  const axes = Math.max(...operands.map((one) => one.shape.length));
  const found: number[] = new Array(axes).fill(1);
  for (const { shape } of operands) {
    shape.forEach((size, i) => {
      const axis = i + axes - shape.length;
      if (found[axis] === 1) found[axis] = size;
      else if (size !== 1 && size !== found[axis]) {
        const sizes = operands.map((one) => shown(one).replace(/^\w+ /, ""));
        throw new Mistake(`${name} of sizes ${sizes.join(" and ")}`);
      }
    });
  }
  return found;
}

function withAxis(name: string, value: Type): readonly number[] {
  if (value.shape.length) return value.shape;
  throw new Mistake(`${name} takes a value with an axis, not ${shown(value)}`);
}

function vector(name: string, value: Type): number {
  if (value.shape.length === 1) return value.shape[0] as number;
  throw new Mistake(`${name} takes one axis, not ${shown(value)}`);
}

function places(name: string, value: Type): void {
  if (value.kind !== INT) throw new Mistake(`${name} takes int as places, not ${shown(value)}`);
}

function bounded(name: string, kind: Kind, shape: readonly number[]): { shape: readonly number[] } {
  if (shape.length <= 2) return { shape };
  throw new Mistake(`${name} would give ${shown({ kind, shape })}: 2 axes at most`);
}

function ownType(
  name: string,
  kind: Kind,
  operands: Type[],
  attributes: number[],
): { kind?: Kind; shape: readonly number[] } {
  const [first, second, third] = operands as [Type, Type, Type];
  const [one, other] = attributes as [number, number];
  const refuse = (told: string): never => {
    throw new Mistake(told);
  };
  switch (name) {
    case "logits":
    case "counts":
    case "given":
      return { shape: [VOCABULARY] };
    case "beside":
      if (!(one >= 0 && one < MOST_BESIDE)) refuse(`beside ${one}: 0 to ${MOST_BESIDE - 1}`);
      return { shape: [VOCABULARY] };
    case "weights":
    case "scores":
      return { shape: [HEADS, name === "weights" ? TOKENS : PAGES] };
    case "shared":
      if (first.shape.length !== 2 || first.shape[0] !== HEADS) {
        refuse(`shared takes heads as its first axis, not ${shown(first)}`);
      }
      return { shape: first.shape };
    case "step":
    case "tokens":
    case "layer":
      return { shape: [] };
    case "newest":
      if (!(one >= 1 && one <= MOST_NEWEST)) refuse(`newest ${one} tokens: 1 to ${MOST_NEWEST}`);
      return { shape: [one] };
    case "constant":
      return { kind: one as Kind, shape: [] };
    case "iota":
      if (!SIZES.has(one) && !(one >= 1)) refuse(`iota of size ${one}`);
      return { shape: [one] };
    case "cast":
      return { kind: one as Kind, shape: first.shape };
    case "where":
      if (first.kind !== BOOL) refuse(`where takes bool first, not ${shown(first)}`);
      return { shape: broadcast(name, operands) };
    case "top": {
      const size = vector(name, first);
      if (!(one >= 1) || (!SIZES.has(size) && one > size)) refuse(`top ${one} of ${shown(first)}`);
      return { shape: [one] };
    }
    case "nucleus":
      if (second.shape.length) refuse(`nucleus takes one share, not ${shown(second)}`);
      return { shape: [vector(name, first)] };
    case "slice": {
      const shape = withAxis(name, first);
      const size = shape[shape.length - 1] as number;
      if (!(one >= 0 && one < other) || (size !== VOCABULARY && other > size)) {
        refuse(`slice from ${one} to ${other} of ${shown(first)}`);
      }
      return { shape: [...shape.slice(0, -1), other - one] };
    }
    case "concat": {
      const [a, b] = [withAxis(name, first), withAxis(name, second)];
      const [m, n] = [a[a.length - 1] as number, b[b.length - 1] as number];
      const alike = a.length === b.length && (a.length === 1 || a[0] === b[0]);
      if (!alike || SIZES.has(m) || SIZES.has(n)) {
        refuse(`concat of ${shown(first)} and ${shown(second)}`);
      }
      return { shape: [...a.slice(0, -1), m + n] };
    }
    case "gather":
      places(name, second);
      return bounded(name, kind, [...second.shape, ...withAxis(name, first).slice(1)]);
    case "scatter_add":
    case "scatter_max":
      places(name, second);
      vector(name, first);
      if (third.kind !== first.kind) {
        refuse(`${name} of ${shown(first)} and ${shown(third)}: cast one of them`);
      }
      if (second.shape.length !== 1 || String(broadcast(name, [second, third])) !== String(second.shape)) {
        refuse(`${name} of ${shown(third)} at ${shown(second)}`);
      }
      return { shape: first.shape };
    case "reshape":
      if (count(attributes) !== count(first.shape)) {
        refuse(`reshape of ${shown(first)} to ${shown({ kind, shape: attributes })}`);
      }
      return bounded(name, kind, attributes);
    case "transpose":
      if (first.shape.length !== 2) refuse(`transpose takes two axes, not ${shown(first)}`);
      return { shape: [...first.shape].reverse() };
    case "matvec":
      if (first.shape.length !== 2 || first.shape[1] !== vector(name, second)) {
        refuse(`matvec of ${shown(first)} and ${shown(second)}`);
      }
      return { shape: [first.shape[0] as number] };
  }
  if (!(one >= 0 && one < 2 ** 16)) refuse(`${name} of stream ${one}: 0 to 65535`);
  return { shape: first.shape }; // random, exponential
}

/** Elements, but for sizes that are not known, and those. */
function count(shape: readonly number[]): string {
  if (shape.some((size) => !SIZES.has(size) && !(size >= 1))) return "none";
  const known = shape.filter((size) => !SIZES.has(size));
  const others = shape.filter((size) => SIZES.has(size)).sort();
  return `${known.reduce((a, b) => a * b, 1)} ${others.join(" ")}`;
}
