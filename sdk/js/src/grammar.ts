/** Grammars that a generation keeps to, and walks through them. */

import { compileGrammar } from "./awaited.ts";
import { checkOptions } from "./errors.ts";
import type { Model } from "./model.ts";
import * as raw from "./raw.ts";

const CACHED = 32; // compiled grammars that an instance holds on to
const LONGEST_ADVANCE = 1024; // tokens that the server takes in one call

/** Options of `Grammar.jsonSchema`. */
export interface SchemaOptions {
  /** True if objects and lists have nothing but what is named, where the schema does not say. */
  strict?: boolean;
  /** True if there may be any white space; else it is as Python's `json` writes it. */
  anyWhitespace?: boolean;
  /** True if keys may come in any order, instead of the schema's. */
  anyKeyOrder?: boolean;
}

const compiled = new Map<string, Promise<number>>();

/**
 * A form that texts are held to. Make one with a static method:
 *
 *     const grammar = Grammar.jsonSchema({ type: "object", properties: { n: { type: "integer" } } });
 *     const text = await context.generate(undefined, { grammar }).collectText();
 *
 * It is compiled by the server, once for each model, when it is first used.
 */
export class Grammar {
  constructor(
    readonly kind: string,
    readonly text: string,
  ) {}

  /** JSON that satisfies a schema, given as an object or as its text. */
  static jsonSchema(schema: object | boolean | string, options: SchemaOptions = {}): Grammar {
    options = checkOptions("jsonSchema", options, ["strict", "anyWhitespace", "anyKeyOrder"]);
    const guidance: Record<string, boolean> = {};
    if (options.strict) guidance.strict = true;
    if (options.anyWhitespace) guidance.any_whitespace = true;
    if (options.anyKeyOrder) guidance.any_key_order = true;
    if (!Object.keys(guidance).length) {
      return new Grammar("json-schema", typeof schema === "string" ? schema : JSON.stringify(schema));
    }
    const given = typeof schema === "string" ? JSON.parse(schema) : schema;
    const merged =
      typeof given === "object"
        ? { ...given, "x-guidance": { ...(given["x-guidance"] ?? {}), ...guidance } }
        : given;
    return new Grammar("json-schema", JSON.stringify(merged));
  }

  /** Any JSON object. */
  static json(): Grammar {
    return Grammar.jsonSchema({ type: "object" });
  }

  /** Text that a regular expression in Rust's syntax matches as a whole. */
  static regex(pattern: string): Grammar {
    return new Grammar("regex", pattern);
  }

  /** A context-free grammar (EBNF) in Lark's syntax, from the rule `start`. */
  static lark(text: string): Grammar {
    return new Grammar("lark", text);
  }

  /** A context-free grammar as llama.cpp writes it (GBNF), from the rule `root`. */
  static ebnf(text: string): Grammar {
    return new Grammar("ebnf", text);
  }

  /** Each grammar's text behind that of the one before. */
  static sequence(parts: Iterable<Grammar>): Grammar {
    return new Grammar("sequence", JSON.stringify([...parts].map((part) => [part.kind, part.text])));
  }

  /** One of some texts. */
  static choice(options: Iterable<string>): Grammar {
    if (typeof options === "string") throw new TypeError("a choice is between texts in a list");
    const texts = [...options].map((option) => JSON.stringify(option));
    if (!texts.length) throw new RangeError("a choice between no texts");
    // Of one terminal there may be any number: each of a rule would be an item of the parser.
    return new Grammar("lark", `start: ONE\nONE: ${texts.join(" | ")}`);
  }

  /**
   * The handle of the compiled grammar, for the raw functions.
   *
   * @throws PieError `invalid-argument` if it is wrong, `limit-exceeded` if it is too large.
   */
  compile(model: Model): Promise<number> {
    const key = JSON.stringify([model.name, this.kind, this.text]);
    let handle = compiled.get(key);
    if (handle === undefined) {
      handle = compileGrammar(model.name, this.kind, this.text);
      compiled.set(key, handle);
      handle.catch(() => compiled.delete(key));
      if (compiled.size > CACHED) {
        const [oldest, promise] = compiled.entries().next().value as [string, Promise<number>];
        compiled.delete(oldest);
        promise.then(raw.releaseGrammar, () => {});
      }
    }
    return handle;
  }

  /** A matcher at the grammar's start. Throws as `compile`. */
  async matcher(model: Model): Promise<Matcher> {
    return new Matcher(raw.createMatcher(await this.compile(model)));
  }
}

/** One walk through a grammar, for programs that choose tokens themselves. */
export class Matcher {
  /** Takes over a matcher of `raw.createMatcher`. */
  constructor(public handle: number) {}

  /**
   * Consumes tokens; whether the text may end then.
   *
   * @throws PieError `invalid-argument` if one is not allowed; then none of this call's is consumed
   *   (of more than 1024, those of the first thousands are).
   */
  advance(tokens: number[]): boolean {
    let accepting = this.isAccepting;
    for (let start = 0; start < tokens.length; start += LONGEST_ADVANCE) {
      accepting = raw.advance(this.handle, tokens.slice(start, start + LONGEST_ADVANCE));
    }
    return accepting;
  }

  /** Takes the last tokens back. */
  rollback(count: number): void {
    raw.rollback(this.handle, count);
  }

  /** How many of the tokens, from the first on, `advance` would consume. */
  countAllowed(tokens: number[]): number {
    return raw.countAllowed(this.handle, tokens);
  }

  /** The tokens that must come next, possibly none. */
  forced(): number[] {
    return raw.grammarForced(this.handle);
  }

  /** The tokens allowed next: bit `t % 32` of word `t / 32` is token `t`. */
  mask(): number[] {
    return raw.grammarMask(this.handle);
  }

  /** True if a token is allowed next. */
  allows(token: number): boolean {
    return this.countAllowed([token]) === 1;
  }

  /** True if the text may end here. */
  get isAccepting(): boolean {
    return raw.isAccepting(this.handle);
  }

  /** True if the text must end here, or has ended with a stop token. */
  get isFinished(): boolean {
    return raw.isFinished(this.handle);
  }

  /** Gives the matcher back. A second call does nothing. */
  close(): void {
    const { handle } = this;
    this.handle = 0;
    if (handle) raw.destroyMatcher(handle);
  }
}
