/**
 * HTTP requests, made by the server for the inferlet.
 *
 *     const response = await http.get("https://api.example.com/items", { params: { page: 2 } });
 *     const items = await response.raiseForStatus().json();
 *
 * The server's operator says which hosts may be reached (`pie-py serve --allow-http HOST`).
 */

import { httpRequest, readBody } from "./awaited.ts";
import { checkOptions, isPieError, PieError } from "./errors.ts";
import * as raw from "./raw.ts";

/** Options of a request. */
export interface RequestOptions {
  /** Appended to the URL as its query. */
  params?: Record<string, string | number | boolean>;
  headers?: Record<string, string> | [string, string][];
  /** Bytes, or text in UTF-8. */
  body?: Uint8Array | string;
  /** Sent as the body in JSON, instead of `body`. */
  json?: unknown;
  /** Seconds for all, to the body's last byte; by default the server's time-out. */
  timeout?: number;
}

const REQUEST_OPTIONS: (keyof RequestOptions)[] = ["params", "headers", "body", "json", "timeout"];

/** A status of 400 or more, thrown by `raiseForStatus`. */
export class HttpError extends Error {
  override name = "HttpError";
  readonly status: number;

  constructor(readonly response: Response) {
    super(`${response.method} ${response.url}: status ${response.status}`);
    this.status = response.status;
  }
}

/** Headers by names in lower case. What came several times is joined by commas. */
export class Headers extends Map<string, string> {
  /** @internal */
  constructor(readonly raw: [string, string][]) {
    super();
    for (const [name] of raw) this.set(name.toLowerCase(), this.getAll(name).join(", "));
  }

  /** A value, by a name in any case. */
  override get(name: string): string | undefined {
    return super.get(name.toLowerCase());
  }

  /** Every value of a name (`set-cookie` can't be joined). */
  getAll(name: string): string[] {
    const wanted = name.toLowerCase();
    return this.raw.filter(([each]) => each.toLowerCase() === wanted).map(([, value]) => value);
  }
}

/** An answer whose headers are there; its body comes as it is read. Read it, or `close` it. */
export class Response {
  readonly headers: Headers;
  #body: number | null;
  #data: Uint8Array | null = null;
  #begun = false;

  /** @internal */
  constructor(
    readonly method: string,
    /** Where the answer came from: redirects may have led there. */
    readonly url: string,
    readonly status: number,
    headers: [string, string][],
    body: number,
  ) {
    this.headers = new Headers(headers);
    this.#body = body;
  }

  /** True if the status is below 400. */
  get ok(): boolean {
    return this.status < 400;
  }

  /** Throws HttpError for a status of 400 or more; returns itself otherwise. */
  raiseForStatus(): this {
    if (!this.ok) throw new HttpError(this);
    return this;
  }

  /** The body in pieces of at most `most` bytes, as they arrive. */
  async *stream(most = 65536): AsyncGenerator<Uint8Array, void, void> {
    if (this.#data !== null) {
      for (let at = 0; at < this.#data.length; at += most) yield this.#data.slice(at, at + most);
      return;
    }
    if (this.#body === null || this.#begun) {
      throw new PieError("invalid-handle: the body is read elsewhere, has been read, or closed");
    }
    this.#begun = true;
    try {
      while (this.#body !== null) {
        const chunk = await readBody(this.#body, most);
        if (!chunk.length) return;
        yield chunk;
      }
    } finally {
      this.close();
    }
  }

  /** The body's lines without their ends, as they arrive (event streams, JSON lines). */
  async *lines(): AsyncGenerator<string, void, void> {
    const decoder = new TextDecoder();
    let rest = "";
    for await (const chunk of this.stream()) {
      const whole = (rest + decoder.decode(chunk, { stream: true })).split("\n");
      rest = whole.pop() ?? "";
      for (const line of whole) yield line.replace(/\r$/, "");
    }
    rest += decoder.decode();
    if (rest) yield rest;
  }

  /** The whole body. */
  async bytes(): Promise<Uint8Array> {
    if (this.#data !== null) return this.#data;
    const chunks: Uint8Array[] = [];
    for await (const chunk of this.stream(1 << 20)) chunks.push(chunk);
    const data = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
    let at = 0;
    for (const chunk of chunks) {
      data.set(chunk, at);
      at += chunk.length;
    }
    this.#data = data;
    return data;
  }

  /** The whole body as text, in UTF-8. */
  async text(): Promise<string> {
    return new TextDecoder().decode(await this.bytes());
  }

  /** The whole body, read as JSON. */
  async json(): Promise<any> {
    return JSON.parse(await this.text());
  }

  /** Gives the rest of the body up. */
  close(): void {
    const body = this.#body;
    this.#body = null;
    try {
      if (body !== null) raw.closeBody(body);
    } catch (error) {
      if (!isPieError(error)) throw error;
    }
  }
}

/**
 * Makes a request (GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS) and returns its answer as soon as the
 * headers are there.
 *
 * @throws PieError `permission-denied` (a host or address that is not allowed), `not-found` (no such
 *   host), `remote-failed`, `timed-out`, `invalid-argument`, `limit-exceeded`.
 */
export async function request(method: string, url: string, options: RequestOptions = {}): Promise<Response> {
  const given = checkOptions("request", options, REQUEST_OPTIONS);
  const { params, headers = [], json, timeout } = given;
  const pairs: [string, string][] = Array.isArray(headers) ? [...headers] : Object.entries(headers);
  let { body = "" } = given;
  if (json !== undefined) {
    if (given.body !== undefined) throw new TypeError("`body` or `json`, not both");
    body = JSON.stringify(json);
    const typed = pairs.some(([name]) => name.toLowerCase() === "content-type");
    if (!typed) pairs.push(["content-type", "application/json"]);
  }
  const query = Object.entries(params ?? {}).map((pair) => pair.map(encodeURIComponent).join("="));
  const [plain] = url.split("#"); // a fragment is not sent
  const whole = query.length ? `${plain}${plain.includes("?") ? "&" : "?"}${query.join("&")}` : url;
  const data = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const milliseconds = timeout === undefined ? 0 : Math.max(1, Math.round(timeout * 1000));
  const answer = await httpRequest(method.toUpperCase(), whole, pairs, data, milliseconds);
  const [status, received, handle] = answer;
  return new Response(method.toUpperCase(), raw.responseUrl(handle), status, received, handle);
}

/** `request` with GET. */
export function get(url: string, options?: RequestOptions): Promise<Response> {
  return request("GET", url, options);
}

/** `request` with POST. */
export function post(url: string, options?: RequestOptions): Promise<Response> {
  return request("POST", url, options);
}
