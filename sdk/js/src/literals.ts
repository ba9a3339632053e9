/** Literals of Python, as models write them in calls of tools: texts, numbers, lists, dictionaries. */

const CONSTANTS: Record<string, unknown> = { True: true, False: false, None: null };
const ESCAPES: Record<string, string> = { n: "\n", t: "\t", r: "\r", b: "\b", f: "\f", v: "\v", 0: "\0" };
const TOKEN = /\s*(?:([A-Za-z_]\w*)|([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([[\](){},:=]))/y;
const TEXT = /\s*("(?:[^"\\\n]|\\[^])*"|'(?:[^'\\\n]|\\[^])*')/y;
const ESCAPE = /\\(?:x([\da-f]{2})|u([\da-f]{4})|U([\da-f]{8})|([^]))/gi;

/** Arguments of a call: those with a name, and those without one, in order. */
export interface Arguments {
  named: Record<string, unknown>;
  values: unknown[];
}

/**
 * The arguments that begin behind an opening parenthesis, and where they end, behind the closing one;
 * null where they are no literals.
 */
export function readArguments(text: string, start: number): [Arguments, number] | null {
  const reader = new Reader(text, start);
  const found: Arguments = { named: {}, values: [] };
  try {
    reader.list(")", () => {
      const name = reader.nameOfArgument();
      if (name !== null) found.named[name] = reader.value();
      else if (Object.keys(found.named).length) throw new NoLiteral();
      else found.values.push(reader.value());
    });
  } catch (error) {
    if (error instanceof NoLiteral) return null;
    throw error;
  }
  return [found, reader.at];
}

class NoLiteral extends Error {}

class Reader {
  constructor(
    readonly text: string,
    public at: number,
  ) {}

  /** Entries with commas between them, up to what closes them. Whether a comma was there. */
  list(close: string, entry: () => void): boolean {
    let comma = false;
    while (!this.takes(close)) {
      entry();
      if (this.takes(",")) comma = true;
      else if (this.takes(close)) return comma;
      else throw new NoLiteral();
    }
    return comma;
  }

  nameOfArgument(): string | null {
    const before = this.at;
    const name = this.#match(TOKEN)?.[1];
    if (name !== undefined && this.takes("=")) return name;
    this.at = before;
    return null;
  }

  value(): unknown {
    const quoted = this.#match(TEXT)?.[1];
    if (quoted !== undefined) return unescaped(quoted.slice(1, -1));
    const found = this.#match(TOKEN);
    if (found === null) throw new NoLiteral();
    const [, word, number, mark] = found;
    if (number !== undefined) return Number(number.replaceAll("_", ""));
    if (word !== undefined && word in CONSTANTS) return CONSTANTS[word];
    if (mark === "{") return this.#dictionary();
    if (mark !== "[" && mark !== "(") throw new NoLiteral();
    const values: unknown[] = [];
    const comma = this.list(mark === "[" ? "]" : ")", () => values.push(this.value()));
    return mark === "(" && values.length === 1 && !comma ? values[0] : values;
  }

  #dictionary(): Record<string, unknown> {
    const found: Record<string, unknown> = {};
    this.list("}", () => {
      const key = String(this.value());
      if (!this.takes(":")) throw new NoLiteral();
      found[key] = this.value();
    });
    return found;
  }

  takes(mark: string): boolean {
    const before = this.at;
    if (this.#match(TOKEN)?.[3] === mark) return true;
    this.at = before;
    return false;
  }

  #match(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found !== null) this.at = pattern.lastIndex;
    return found;
  }
}

function unescaped(text: string): string {
  return text.replace(ESCAPE, (_, x, u, U, other) => {
    if (other === undefined) return String.fromCodePoint(Number.parseInt(x ?? u ?? U, 16));
    return other === "\n" ? "" : (ESCAPES[other] ?? (/[\\'"]/.test(other) ? other : `\\${other}`));
  });
}
