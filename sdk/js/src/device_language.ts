// Generated from device_programs/language.py by `python -m codegen`; do not edit.

/** An operation: how its result's type follows, letters of the kinds that it takes and gives. */
export interface Operation {
  rule: "map" | "zip" | "reduce" | "scan" | "own";
  takes: string;
  gives: string;
  operands: number;
  attributes: number;
}

export const OPERATIONS: Record<string, Operation> = {
  logits: { rule: "own", takes: "", gives: "f", operands: 0, attributes: 0 },
  step: { rule: "own", takes: "", gives: "i", operands: 0, attributes: 0 },
  newest: { rule: "own", takes: "", gives: "i", operands: 0, attributes: 1 },
  counts: { rule: "own", takes: "", gives: "i", operands: 0, attributes: 0 },
  given: { rule: "own", takes: "", gives: "b", operands: 0, attributes: 0 },
  beside: { rule: "own", takes: "", gives: "f", operands: 0, attributes: 1 },
  state: { rule: "own", takes: "", gives: "", operands: 0, attributes: 1 },
  constant: { rule: "own", takes: "", gives: "", operands: 0, attributes: 2 },
  iota: { rule: "own", takes: "", gives: "i", operands: 0, attributes: 1 },
  neg: { rule: "map", takes: "fi", gives: "", operands: 1, attributes: 0 },
  abs: { rule: "map", takes: "fi", gives: "", operands: 1, attributes: 0 },
  floor: { rule: "map", takes: "f", gives: "", operands: 1, attributes: 0 },
  sqrt: { rule: "map", takes: "f", gives: "", operands: 1, attributes: 0 },
  exp: { rule: "map", takes: "f", gives: "", operands: 1, attributes: 0 },
  log: { rule: "map", takes: "f", gives: "", operands: 1, attributes: 0 },
  tanh: { rule: "map", takes: "f", gives: "", operands: 1, attributes: 0 },
  sigmoid: { rule: "map", takes: "f", gives: "", operands: 1, attributes: 0 },
  not: { rule: "map", takes: "b", gives: "", operands: 1, attributes: 0 },
  is_nan: { rule: "map", takes: "f", gives: "b", operands: 1, attributes: 0 },
  cast: { rule: "own", takes: "fib", gives: "", operands: 1, attributes: 1 },
  add: { rule: "zip", takes: "fi", gives: "", operands: 2, attributes: 0 },
  sub: { rule: "zip", takes: "fi", gives: "", operands: 2, attributes: 0 },
  mul: { rule: "zip", takes: "fi", gives: "", operands: 2, attributes: 0 },
  div: { rule: "zip", takes: "f", gives: "", operands: 2, attributes: 0 },
  pow: { rule: "zip", takes: "f", gives: "", operands: 2, attributes: 0 },
  minimum: { rule: "zip", takes: "fi", gives: "", operands: 2, attributes: 0 },
  maximum: { rule: "zip", takes: "fi", gives: "", operands: 2, attributes: 0 },
  floordiv: { rule: "zip", takes: "i", gives: "", operands: 2, attributes: 0 },
  mod: { rule: "zip", takes: "i", gives: "", operands: 2, attributes: 0 },
  and: { rule: "zip", takes: "ib", gives: "", operands: 2, attributes: 0 },
  or: { rule: "zip", takes: "ib", gives: "", operands: 2, attributes: 0 },
  xor: { rule: "zip", takes: "ib", gives: "", operands: 2, attributes: 0 },
  shl: { rule: "zip", takes: "i", gives: "", operands: 2, attributes: 0 },
  shr: { rule: "zip", takes: "i", gives: "", operands: 2, attributes: 0 },
  lt: { rule: "zip", takes: "fi", gives: "b", operands: 2, attributes: 0 },
  le: { rule: "zip", takes: "fi", gives: "b", operands: 2, attributes: 0 },
  eq: { rule: "zip", takes: "fib", gives: "b", operands: 2, attributes: 0 },
  hash: { rule: "zip", takes: "i", gives: "", operands: 2, attributes: 0 },
  where: { rule: "own", takes: "fib", gives: "", operands: 3, attributes: 0 },
  sum: { rule: "reduce", takes: "fi", gives: "", operands: 1, attributes: 0 },
  max: { rule: "reduce", takes: "fi", gives: "", operands: 1, attributes: 0 },
  min: { rule: "reduce", takes: "fi", gives: "", operands: 1, attributes: 0 },
  any: { rule: "reduce", takes: "b", gives: "", operands: 1, attributes: 0 },
  all: { rule: "reduce", takes: "b", gives: "", operands: 1, attributes: 0 },
  argmax: { rule: "reduce", takes: "fi", gives: "i", operands: 1, attributes: 0 },
  cumsum: { rule: "scan", takes: "fi", gives: "", operands: 1, attributes: 0 },
  log_softmax: { rule: "scan", takes: "f", gives: "", operands: 1, attributes: 0 },
  sort: { rule: "scan", takes: "fi", gives: "", operands: 1, attributes: 0 },
  argsort: { rule: "scan", takes: "fi", gives: "i", operands: 1, attributes: 0 },
  flip: { rule: "scan", takes: "fib", gives: "", operands: 1, attributes: 0 },
  top: { rule: "own", takes: "fi", gives: "i", operands: 1, attributes: 1 },
  nucleus: { rule: "own", takes: "f", gives: "b", operands: 2, attributes: 0 },
  slice: { rule: "own", takes: "fib", gives: "", operands: 1, attributes: 2 },
  concat: { rule: "own", takes: "fib", gives: "", operands: 2, attributes: 0 },
  gather: { rule: "own", takes: "fib", gives: "", operands: 2, attributes: 0 },
  scatter_add: { rule: "own", takes: "fi", gives: "", operands: 3, attributes: 0 },
  scatter_max: { rule: "own", takes: "fib", gives: "", operands: 3, attributes: 0 },
  reshape: { rule: "own", takes: "fib", gives: "", operands: 1, attributes: 1 },
  transpose: { rule: "own", takes: "fib", gives: "", operands: 1, attributes: 0 },
  matvec: { rule: "own", takes: "f", gives: "", operands: 2, attributes: 0 },
  random: { rule: "own", takes: "i", gives: "f", operands: 1, attributes: 1 },
  exponential: { rule: "own", takes: "i", gives: "f", operands: 1, attributes: 1 },
  weights: { rule: "own", takes: "", gives: "f", operands: 0, attributes: 1 },
  scores: { rule: "own", takes: "", gives: "f", operands: 0, attributes: 0 },
  tokens: { rule: "own", takes: "", gives: "i", operands: 0, attributes: 0 },
  layer: { rule: "own", takes: "", gives: "i", operands: 0, attributes: 0 },
  shared: { rule: "own", takes: "f", gives: "", operands: 1, attributes: 0 },
};

/** A size: as many as the model has tokens. */
export const VOCABULARY = -1;
/** Sizes of the stage `attend`: of queries in a layer, and of the context. */
export const HEADS = -2;
export const TOKENS = -3;
export const PAGES = -4;
export const SIZES = new Map([[-1, "vocabulary"], [-2, "heads"], [-3, "tokens"], [-4, "pages"]]);
export const MOST_NEWEST = 4096;
export const MOST_BESIDE = 2;
export const REMEMBERED = ["newest", "counts", "given"];
