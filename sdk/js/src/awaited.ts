// Generated from sdk/wit/inferlet.wit by `python -m codegen`; do not edit.

/**
 * The contract's functions that take time, awaitable: each waits for its future and gives its
 * value. One that would block waits until there is room.
 */

import { isPieError } from "./errors.ts";
import { ready } from "./loop.ts";
import * as raw from "./raw.ts";
import type { LogLevel, Detail } from "./raw.ts";

/**
 * Ready when every command queued before it has taken effect; then reports the first error
 * among them that nothing has reported yet.
 * @throws PieError `invalid-handle`, `limit-exceeded`.
 */
export async function synchronize(queue: number): Promise<void> {
  const future = raw.synchronize(queue);
  await ready(future);
  return raw.take(future);
}

/**
 * Ready after this time.
 * @throws PieError `limit-exceeded`.
 */
export async function sleep(nanoseconds: bigint | number): Promise<void> {
  const future = raw.sleep(nanoseconds);
  await ready(future);
  return raw.take(future);
}

/**
 * Starts a child instance of a program (its name or content hash), as the same user. A child
 * ends with its parent, and when its future is cancelled. It has no client: parent and child
 * talk through `messaging`.
 * @throws PieError `not-found`, `limit-exceeded` (too many children, or generations of them). Of the
 * future: `failed-dependency` (the child failed; the message is the child's own error text),
 * `cancelled` (it was killed), `limit-exceeded`, `worker-lost` or `invalid-argument`
 * (it could not be started).
 */
export async function launch(program: string, args: ReadonlyArray<string>): Promise<string> {
  const future = raw.launch(program, args);
  await ready(future);
  return raw.takeText(future);
}

/**
 * Sends text to the client. The server keeps a bounded number of bytes for a client that does
 * not read (back-pressure).
 * @throws PieError `limit-exceeded` (one message too large).
 */
export async function send(message: string): Promise<void> {
  for (;;) {
    try {
      return raw.send(message);
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await writable();
  }
}

/**
 * Sends bytes to the client.
 * @throws PieError as `send`.
 */
export async function sendBlob(data: Uint8Array): Promise<void> {
  for (;;) {
    try {
      return raw.sendBlob(data);
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await writable();
  }
}

/**
 * Ready when `send` has room again.
 * @throws PieError `limit-exceeded`.
 */
export async function writable(): Promise<void> {
  const future = raw.writable();
  await ready(future);
  return raw.take(future);
}

/**
 * The client's next text. Cancelled, it leaves the text for the next call.
 * @throws PieError `limit-exceeded`.
 */
export async function receive(): Promise<string> {
  const future = raw.receive();
  await ready(future);
  return raw.takeText(future);
}

/**
 * The client's next bytes. Cancelled, it leaves them for the next call.
 * @throws PieError `limit-exceeded`.
 */
export async function receiveBlob(): Promise<Uint8Array> {
  const future = raw.receiveBlob();
  await ready(future);
  return raw.takeBlob(future);
}

/** `httpRequest` with GET, without a body, with the server's time-out. */
export async function httpGet(url: string, headers: ReadonlyArray<[string, string]>): Promise<[number, [string, string][], number]> {
  const future = raw.httpGet(url, headers);
  await ready(future);
  return raw.takeResponse(future);
}

/** `httpRequest` with POST and the server's time-out. */
export async function httpPost(url: string, headers: ReadonlyArray<[string, string]>, body: Uint8Array): Promise<[number, [string, string][], number]> {
  const future = raw.httpPost(url, headers, body);
  await ready(future);
  return raw.takeResponse(future);
}

/**
 * Starts a request (GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS) to an `http://` or
 * `https://` URL; ready when the answer's headers have arrived, whatever its status. Redirects
 * are followed; a redirect to another origin drops headers that carry secrets. `timeoutMs`
 * bounds the time from this call to the last byte of the body; 0 is the server's time-out.
 * Unless `headers` have an Accept-Encoding, a gzip body is unpacked.
 * @throws PieError `invalid-argument`, `permission-denied` (a host that is not allowed),
 * `limit-exceeded` (size, requests under way, requests per second, open bodies).
 */
export async function httpRequest(method: string, url: string, headers: ReadonlyArray<[string, string]>, body: Uint8Array, timeoutMs: number): Promise<[number, [string, string][], number]> {
  const future = raw.httpRequest(method, url, headers, body, timeoutMs);
  await ready(future);
  return raw.takeResponse(future);
}

/**
 * The next bytes of a body, as soon as there are any, at most `most` and at most 1 MiB; none at
 * the end. One read at a time.
 * @throws PieError `invalid-handle`, `invalid-argument`, `busy`, `limit-exceeded`; of the future:
 * `remote-failed`, `timed-out`, `limit-exceeded` (the body is too large).
 */
export async function readBody(body: number, most: number): Promise<Uint8Array> {
  const future = raw.readBody(body, most);
  await ready(future);
  return raw.takeBlob(future);
}

/**
 * A server's tools, a JSON list of `{"name", "title", "description", "input_schema",
 * "output_schema"}`.
 * @throws PieError `not-found`, `limit-exceeded`; of the future: `remote-failed` (the server did not
 * start, died, or refused), `timed-out`, `limit-exceeded` (the answer is too large).
 */
export async function mcpListTools(server: string): Promise<string> {
  const future = raw.mcpListTools(server);
  await ready(future);
  return raw.takeText(future);
}

/**
 * A tool's answer to `arguments`, a JSON object: a JSON object with `content` (a list of MCP
 * content blocks), `is_error` (the tool's own failure), and `structured` (what the tool's
 * output schema describes, or null).
 * @throws PieError `not-found`, `invalid-argument`, `limit-exceeded`; of the future: as
 * `mcpListTools`.
 */
export async function mcpCallTool(server: string, tool: string, arguments_: string): Promise<string> {
  const future = raw.mcpCallTool(server, tool, arguments_);
  await ready(future);
  return raw.takeText(future);
}

/**
 * Sends to every current subscriber of a topic among this user's instances, this one included,
 * and returns how many there are. All or none: if the box of one subscriber is full, nothing
 * is sent and the error names it. So no subscriber misses a message.
 * @throws PieError `invalid-argument`, `limit-exceeded` (message too large).
 */
export async function broadcast(topic: string, message: string): Promise<number> {
  for (;;) {
    try {
      return raw.broadcast(topic, message);
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await broadcastRoom(topic);
  }
}

/**
 * Ready when the box of every subscriber has room.
 * @throws PieError `invalid-argument`, `limit-exceeded`.
 */
export async function broadcastRoom(topic: string): Promise<void> {
  const future = raw.broadcastRoom(topic);
  await ready(future);
  return raw.take(future);
}

/**
 * The subscription's next message, in the order of the broadcasts. Cancelled, it leaves the
 * message for the next call.
 * @throws PieError `invalid-handle`, `limit-exceeded`.
 */
export async function nextMessage(subscription: number): Promise<string> {
  const future = raw.nextMessage(subscription);
  await ready(future);
  return raw.takeText(future);
}

/**
 * Appends to the user's work queue of a topic, which is bounded (back-pressure).
 * @throws PieError `invalid-argument`, `limit-exceeded` (message too large, too many
 * queues).
 */
export async function push(topic: string, message: string): Promise<void> {
  for (;;) {
    try {
      return raw.push(topic, message);
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await pushRoom(topic);
  }
}

/**
 * Ready when the work queue has room.
 * @throws PieError `invalid-argument`, `limit-exceeded`.
 */
export async function pushRoom(topic: string): Promise<void> {
  const future = raw.pushRoom(topic);
  await ready(future);
  return raw.take(future);
}

/**
 * The oldest message of the work queue (FIFO); waits for one. Each message goes to exactly one
 * puller; pullers are served in the order of their calls. Cancelled, it leaves the message for
 * the next puller.
 * @throws PieError `invalid-argument`, `limit-exceeded`.
 */
export async function pull(topic: string): Promise<string> {
  const future = raw.pull(topic);
  await ready(future);
  return raw.takeText(future);
}

/**
 * A key's value, or the error `not-found`.
 * @throws PieError `invalid-argument`, `limit-exceeded`.
 */
export async function storeGet(key: string): Promise<Uint8Array> {
  for (;;) {
    try {
      const future = raw.storeGet(key);
      await ready(future);
      return raw.takeBlob(future);
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await storeRoom();
  }
}

/**
 * Sets a key's value, new or instead of its old one.
 * @throws PieError `invalid-argument`, `limit-exceeded` (value too large; of the future:
 * quota).
 */
export async function storeSet(key: string, value: Uint8Array): Promise<void> {
  for (;;) {
    try {
      const future = raw.storeSet(key, value);
      await ready(future);
      return raw.take(future);
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await storeRoom();
  }
}

/**
 * Removes a key; idempotent: a missing key is no error.
 * @throws PieError `invalid-argument`, `limit-exceeded`.
 */
export async function storeDelete(key: string): Promise<void> {
  for (;;) {
    try {
      const future = raw.storeDelete(key);
      await ready(future);
      return raw.take(future);
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await storeRoom();
  }
}

/**
 * The keys that begin with `prefix` and come after `after`, in the order of their UTF-8 bytes,
 * at most `limit` (1 to 1000) of them. An empty `after` is before every key.
 * @throws PieError `invalid-argument`, `limit-exceeded`.
 */
export async function storeList(prefix: string, after: string, limit: number): Promise<string[]> {
  for (;;) {
    try {
      const future = raw.storeList(prefix, after, limit);
      await ready(future);
      return raw.takeTexts(future);
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await storeRoom();
  }
}

/**
 * Ready when operations are accepted again.
 * @throws PieError `limit-exceeded`.
 */
export async function storeRoom(): Promise<void> {
  const future = raw.storeRoom();
  await ready(future);
  return raw.take(future);
}

/**
 * Makes all changes at once, if each of the `expected` keys has just this value and none of
 * the `absent` keys exists; otherwise nothing changes and the future's error is `conflict`. At
 * most 1000 keys in conditions, and as many in changes; none twice.
 * @throws PieError `invalid-argument`, `limit-exceeded` (value too large, too many keys;
 * of the future: quota).
 */
export async function storeCommit(expected: ReadonlyArray<[string, Uint8Array]>, absent: ReadonlyArray<string>, writes: ReadonlyArray<[string, Uint8Array]>, deletes: ReadonlyArray<string>): Promise<void> {
  for (;;) {
    try {
      const future = raw.storeCommit(expected, absent, writes, deletes);
      await ready(future);
      return raw.take(future);
    } catch (error) {
      if (!isPieError(error, "would-block")) throw error;
    }
    await storeRoom();
  }
}

/**
 * As `forward`, and what the last `observed` inputs attend to. An empty `adapter` means
 * none.
 * @throws PieError as `forwardWithAdapter`, and `invalid-argument` (not 1 to as many as inputs are
 * observed), `limit-exceeded` (an answer of over 524288 numbers, inputs times columns
 * over 2^28), `unsupported`.
 */
export async function forwardWithAttention(queue: number, inputPages: ReadonlyArray<number>, inputEmbeds: ReadonlyArray<number>, outputPages: ReadonlyArray<number>, outputEmbeds: ReadonlyArray<number>, mask: ReadonlyArray<number>, observed: number, detail: Detail, adapter: string): Promise<[number, number[]]> {
  const future = raw.forwardWithAttention(queue, inputPages, inputEmbeds, outputPages, outputEmbeds, mask, observed, detail, adapter);
  await ready(future);
  return raw.takeAttention(future);
}

/**
 * The `k` most likely next tokens after an output embed. `k` is at least 1; more than the
 * vocabulary means the whole vocabulary; 256 is usual.
 * @throws PieError `invalid-handle`, `invalid-argument`, `limit-exceeded`.
 */
export async function getNextDist(queue: number, embed: number, k: number): Promise<[number[], number[]]> {
  const future = raw.getNextDist(queue, embed, k);
  await ready(future);
  return raw.takeDist(future);
}

/**
 * The mean of the hidden states in embeds (spans), of one embed its own. Those that a forward
 * has written are after the model's final norm.
 * @throws PieError `invalid-handle`, `invalid-argument` (no embed, or one that holds nothing yet),
 * `limit-exceeded` (more embeds than `max_batch_tokens`, too many queued commands).
 */
export async function getHidden(queue: number, embeds: ReadonlyArray<number>): Promise<number[]> {
  const future = raw.getHidden(queue, embeds);
  await ready(future);
  return raw.takeHidden(future);
}

/**
 * Asks for the state of a sampler that is a device program, after the choices queued before:
 * a JSON object that has, of each name that changes, a number, a boolean, or lists of them;
 * null is a number that JSON has not.
 * @throws PieError `invalid-handle`, `invalid-argument` (no device program), `limit-exceeded`.
 */
export async function readState(queue: number, sampler: number): Promise<string> {
  const future = raw.readState(queue, sampler);
  await ready(future);
  return raw.takeText(future);
}

/**
 * Chooses a token that follows an output embed. The sampler moves on even if the future is
 * cancelled.
 * @throws PieError `invalid-handle`, `invalid-argument`, `limit-exceeded`.
 */
export async function sample(queue: number, embed: number, sampler: number): Promise<[number, number, number[], number[]]> {
  const future = raw.sample(queue, embed, sampler);
  await ready(future);
  return raw.takeSample(future);
}

/**
 * As `sample`, among the tokens that a mask allows: bit `t % 32` of word `t / 32` is token
 * `t`.
 * @throws PieError as `sample`.
 */
export async function sampleMasked(queue: number, embed: number, sampler: number, mask: ReadonlyArray<number>): Promise<[number, number, number[], number[]]> {
  const future = raw.sampleMasked(queue, embed, sampler, mask);
  await ready(future);
  return raw.takeSample(future);
}

/**
 * A generation's next step, in one call: `embedSampled`; the forward of that embed over the
 * input pages, through an adapter if one is named, with keys and values into a page and the
 * hidden state into the embed itself; and `sample` of it, whose future is returned. An error
 * leaves none of them queued.
 * @throws PieError as of these three functions, and of `forwardWithAdapter`.
 */
export async function step(queue: number, sampler: number, position: number, embed: number, inputPages: ReadonlyArray<number>, outputPage: number, adapter: string): Promise<[number, number, number[], number[]]> {
  const future = raw.step(queue, sampler, position, embed, inputPages, outputPage, adapter);
  await ready(future);
  return raw.takeSample(future);
}

/**
 * Ready when `count` tokens of a run are there that were not taken, or the run is over. The run
 * goes on by itself to a few tokens more than were asked for.
 * @throws PieError `invalid-handle`, `invalid-argument` (no token), `limit-exceeded`.
 */
export async function runProgress(queue: number, run: number, count: number): Promise<void> {
  const future = raw.runProgress(queue, run, count);
  await ready(future);
  return raw.take(future);
}

/**
 * Has the server read a run as text, that of all its tokens, so that the guest is woken at its
 * end alone. The text is that of the tokens' bytes, as `getVocabs` has them; bytes that are no
 * character are U+FFFD. The tokens `before` stand before the run's first one, which may end a
 * character that they begin. A stop token has no text, nor have tokens in the spans `hidden`.
 * The first of the strings `ends` that comes in the text ends the run; the text ends before it.
 *
 * With `toClient` the text goes to the client as it comes, in messages of whole characters as
 * by `send`, while the client has room; what may be the start of one of the `ends` waits. The
 * run goes a few tokens beyond what is sent. The future is ready when all has been sent;
 * cancelled, no more is sent. The run's tokens can be taken as ever.
 * @throws PieError `invalid-handle`, `invalid-argument` (an empty string, a span without its count),
 * `limit-exceeded` (more than 1024 characters in `ends`, or 512 spans).
 */
export async function runText(queue: number, run: number, before: ReadonlyArray<number>, ends: ReadonlyArray<string>, hidden: ReadonlyArray<number>, toClient: boolean): Promise<[string, number, number]> {
  const future = raw.runText(queue, run, before, ends, hidden, toClient);
  await ready(future);
  return raw.takeRunText(future);
}

/**
 * Compiles a grammar for a model's tokens. `kind` is `json-schema`, `regex` (Rust's syntax,
 * over the whole text), `lark` or `ebnf` (EBNF in Lark's syntax, with the rule `start`, or
 * llama.cpp's GBNF, with the rule `root`), or `sequence` (a JSON list of `[kind, text]`, each
 * behind the one before). The same text is compiled once.
 *
 * A schema's keys come in its order, also of one within `lark` (`%json {...}`). Its
 * `x-guidance` is an object of options: `strict` (false; objects and lists have nothing but
 * what is named, where the schema does not say), `any_whitespace` (false: as Python's `json`
 * writes it), `any_key_order` (false). What a grammar cannot hold a text to is refused by its
 * name.
 *
 * In `lark` and `ebnf` a terminal, a rule of texts and regular expressions alone, takes as much
 * text as it can.
 * @throws PieError `unknown-model`, `invalid-argument`, `limit-exceeded`; of the future:
 * `invalid-argument` (the grammar is wrong), `limit-exceeded` (too large or too slow),
 * `unsupported`.
 */
export async function compileGrammar(model: string, kind: string, text: string): Promise<number> {
  const future = raw.compileGrammar(model, kind, text);
  await ready(future);
  return raw.takeGrammar(future);
}

/**
 * As `sample`, among the tokens that the matcher allows; the matcher then consumes the
 * one chosen by itself, before the future is ready.
 * @throws PieError as `sample`, and `busy`.
 */
export async function sampleConstrained(queue: number, embed: number, sampler: number, matcher: number): Promise<[number, number, number[], number[]]> {
  const future = raw.sampleConstrained(queue, embed, sampler, matcher);
  await ready(future);
  return raw.takeSample(future);
}
