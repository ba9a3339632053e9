// Generated from sdk/wit/inferlet.wit by `python -m codegen`; do not edit.
/**
 * The contract as it is: one function each, on plain numbers and lists.
 *
 * `Context` and `Generator` are built from it; call it directly for what those do not offer.
 * Handles are numbers. Pages and embeds are passed as spans, a flat list
 * `[start, count, start, count, ...]`. A function that takes time returns the handle of a future:
 * `await ready(future)`, then consume it with the `take` function that its documentation names.
 *
 * Every function throws `PieError` for the codes that its documentation lists, and TypeError or
 * RangeError for arguments that are not of the types given.
 */

import * as _runtime from "pie:inferlet/runtime@0.1.0";
import * as _session from "pie:inferlet/session@0.1.0";
import * as _http from "pie:inferlet/http@0.1.0";
import * as _mcp from "pie:inferlet/mcp@0.1.0";
import * as _messaging from "pie:inferlet/messaging@0.1.0";
import * as _store from "pie:inferlet/store@0.1.0";
import * as _allocate from "pie:inferlet/allocate@0.1.0";
import * as _forward from "pie:inferlet/forward@0.1.0";
import * as _adapter from "pie:inferlet/adapter@0.1.0";
import * as _introspect from "pie:inferlet/introspect@0.1.0";
import * as _offload from "pie:inferlet/offload@0.1.0";
import * as _prefixCache from "pie:inferlet/prefix-cache@0.1.0";
import * as _inputText from "pie:inferlet/input-text@0.1.0";
import * as _inputImage from "pie:inferlet/input-image@0.1.0";
import * as _tokenize from "pie:inferlet/tokenize@0.1.0";
import * as _outputText from "pie:inferlet/output-text@0.1.0";
import * as _sample from "pie:inferlet/sample@0.1.0";
import * as _grammar from "pie:inferlet/grammar@0.1.0";
import { asBool, asBytes, asInteger, asCase, asTexts, asText, asU32, asU32s } from "./convert.ts";
import { called, plain } from "./convert.ts";

// Interface `runtime`
/**
 * What a line of the log is: for the author of the inferlet, for its operator, about something
 * odd, or about something that has failed.
 */
export type LogLevel = "debug" | "info" | "warning" | "error";

/** The arguments given at launch, in order. */
export function getArg(): string[] {
  return plain(_runtime.getArg()) as string[];
}

/** This instance's identifier, unique on the server. */
export function instanceId(): string {
  return _runtime.instanceId();
}

/** The user who launched this instance. */
export function user(): string {
  return _runtime.user();
}

/** The server's version. */
export function version(): string {
  return _runtime.version();
}

/** Names of the models being served. The first one is the server's default. */
export function availableModels(): string[] {
  return plain(_runtime.availableModels()) as string[];
}

/**
 * Names of the traits that a model offers.
 * Errors: `unknown-model`.
 */
export function availableTraits(model: string): string[] {
  try {
    return plain(_runtime.availableTraits(asText(model))) as string[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Properties of a model, a JSON object so that keys can be added without breaking a component:
 * `name`, `architecture`, `page_size` (tokens), `vocab_size`, `max_position` (tokens),
 * `max_batch_tokens` (largest forward), `layers`, `heads` (of queries, in each layer),
 * `bos_token` (or null: texts start without one), `stop_tokens` (token ids), `around` (token
 * ids that the tokenizer itself puts before and behind a text), `pooling` (of embeddings:
 * `last`, `mean`, or null: what the checkpoint wants is not known),
 * `has_chat_template`, `chat_arguments` (what the template reads beside messages, such as
 * `tools`), `chat_markers` (the added tokens that stand in the template, such as `<think>`),
 * `generation_defaults` (what the checkpoint recommends of `temperature`, `top_k`, `top_p`,
 * `min_p`, `repetition_penalty`, possibly none).
 * Errors: `unknown-model`.
 */
export function modelInfo(model: string): string {
  try {
    return _runtime.modelInfo(asText(model));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Creates a command queue of a model. Commands of one queue take effect in order; queues are
 * independent of each other.
 * Errors: `unknown-model`, `limit-exceeded`.
 */
export function createQueue(model: string): number {
  try {
    return _runtime.createQueue(asText(model));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Destroys a queue. Commands already in it still take effect.
 * Errors: `invalid-handle`.
 */
export function destroyQueue(queue: number): void {
  try {
    _runtime.destroyQueue(asU32(queue));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Ready when every command queued before it has taken effect; then reports the first error
 * among them that nothing has reported yet.
 * Gives: nothing, by `take`.
 * Errors: `invalid-handle`, `limit-exceeded`.
 */
export function synchronize(queue: number): number {
  try {
    return _runtime.synchronize(asU32(queue));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Priority of a queue, 0 unless set; higher goes first within a batch. At most 100, at least
 * -100.
 * Errors: `invalid-handle`, `invalid-argument`.
 */
export function setQueuePriority(queue: number, priority: number): void {
  try {
    _runtime.setQueuePriority(asU32(queue), Number(asInteger(priority, -2147483648n, 2147483648n)));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Suspends the instance until at least one of the futures is ready, and returns those that
 * are, in the order given. A ready future stays ready until it is taken or cancelled. An empty
 * list gives every other instance a turn and returns an empty list.
 * Errors: `invalid-handle`.
 */
export function wait(futures: Iterable<number>): number[] {
  try {
    return plain(_runtime.wait(asU32s(futures))) as number[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future that carries no value.
 * Errors: `invalid-handle`, `not-ready`, or the error of the operation.
 */
export function take(future: number): void {
  try {
    _runtime.take(asU32(future));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future that carries text.
 * Errors: as `take`.
 */
export function takeText(future: number): string {
  try {
    return _runtime.takeText(asU32(future));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future that carries a list of texts.
 * Errors: as `take`.
 */
export function takeTexts(future: number): string[] {
  try {
    return plain(_runtime.takeTexts(asU32(future))) as string[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future that carries bytes.
 * Errors: as `take`.
 */
export function takeBlob(future: number): Uint8Array {
  try {
    return plain(_runtime.takeBlob(asU32(future))) as Uint8Array;
  } catch (error) {
    throw called(error);
  }
}

/**
 * Cancels a future, ready or not. Its operation is undone where possible: a message stays in
 * the mailbox, a child instance is killed, a command that has not been sent yields no result.
 * Errors: `invalid-handle`.
 */
export function cancel(future: number): void {
  try {
    _runtime.cancel(asU32(future));
  } catch (error) {
    throw called(error);
  }
}

/** Nanoseconds since the Unix epoch. */
export function now(): bigint {
  return _runtime.now();
}

/** Nanoseconds of a clock that never goes back, from an arbitrary start. */
export function monotonicNow(): bigint {
  return _runtime.monotonicNow();
}

/**
 * Ready after this time.
 * Gives: nothing, by `take`.
 * Errors: `limit-exceeded`.
 */
export function sleep(nanoseconds: bigint | number): number {
  try {
    return _runtime.sleep(asInteger(nanoseconds, 0n, 18446744073709551616n));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Random bytes fit for cryptography, at most 65536.
 * Errors: `invalid-argument`.
 */
export function randomBytes(count: number): Uint8Array {
  try {
    return plain(_runtime.randomBytes(asU32(count))) as Uint8Array;
  } catch (error) {
    throw called(error);
  }
}

/** Writes a line to the instance's log (`pie-py logs`). The log keeps the newest lines. */
export function log(level: LogLevel, message: string): void {
  _runtime.log(asCase(level, ["debug", "info", "warning", "error"]), asText(message));
}

/**
 * Starts a child instance of a program (its name or content hash), as the same user. A child
 * ends with its parent, and when its future is cancelled. It has no client: parent and child
 * talk through `messaging`.
 * Gives: the child's result, by `takeText`.
 * Errors: `not-found`, `limit-exceeded` (too many children, or generations of them). Of the
 * future: `failed-dependency` (the child failed; the message is the child's own error text),
 * `cancelled` (it was killed), `limit-exceeded`, `worker-lost` or `invalid-argument`
 * (it could not be started).
 */
export function launch(program: string, args: Iterable<string>): number {
  try {
    return _runtime.launch(asText(program), asTexts(args));
  } catch (error) {
    throw called(error);
  }
}

// Interface `session`

/**
 * Sends text to the client. The server keeps a bounded number of bytes for a client that does
 * not read (back-pressure).
 * Room: after `would-block`, by `writable`.
 * Errors: `would-block`, `limit-exceeded` (one message too large).
 */
export function send(message: string): void {
  try {
    _session.send(asText(message));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Sends bytes to the client.
 * Room: after `would-block`, by `writable`.
 * Errors: as `send`.
 */
export function sendBlob(data: Uint8Array): void {
  try {
    _session.sendBlob(asBytes(data));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Ready when `send` has room again.
 * Gives: nothing, by `take`.
 * Errors: `limit-exceeded`.
 */
export function writable(): number {
  try {
    return _session.writable();
  } catch (error) {
    throw called(error);
  }
}

/**
 * The client's next text. Cancelled, it leaves the text for the next call.
 * Gives: text, by `takeText`.
 * Errors: `limit-exceeded`.
 */
export function receive(): number {
  try {
    return _session.receive();
  } catch (error) {
    throw called(error);
  }
}

/**
 * The client's next bytes. Cancelled, it leaves them for the next call.
 * Gives: bytes, by `takeBlob`.
 * Errors: `limit-exceeded`.
 */
export function receiveBlob(): number {
  try {
    return _session.receiveBlob();
  } catch (error) {
    throw called(error);
  }
}

// Interface `http`

/**
 * `httpRequest` with GET, without a body, with the server's time-out.
 * Gives: a response, by `takeResponse`.
 */
export function httpGet(url: string, headers: Iterable<[string, string]>): number {
  try {
    return _http.httpGet(asText(url), Array.from(headers, ([first, second]): [string, string] => [asText(first), asText(second)]));
  } catch (error) {
    throw called(error);
  }
}

/**
 * `httpRequest` with POST and the server's time-out.
 * Gives: a response, by `takeResponse`.
 */
export function httpPost(url: string, headers: Iterable<[string, string]>, body: Uint8Array): number {
  try {
    return _http.httpPost(asText(url), Array.from(headers, ([first, second]): [string, string] => [asText(first), asText(second)]), asBytes(body));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Starts a request (GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS) to an `http://` or
 * `https://` URL; ready when the answer's headers have arrived, whatever its status. Redirects
 * are followed; a redirect to another origin drops headers that carry secrets. `timeoutMs`
 * bounds the time from this call to the last byte of the body; 0 is the server's time-out.
 * Unless `headers` have an Accept-Encoding, a gzip body is unpacked.
 * Gives: a response, by `takeResponse`.
 * Errors: `invalid-argument`, `permission-denied` (a host that is not allowed),
 * `limit-exceeded` (size, requests under way, requests per second, open bodies).
 */
export function httpRequest(method: string, url: string, headers: Iterable<[string, string]>, body: Uint8Array, timeoutMs: number): number {
  try {
    return _http.httpRequest(asText(method), asText(url), Array.from(headers, ([first, second]): [string, string] => [asText(first), asText(second)]), asBytes(body), asU32(timeoutMs));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future of an answer: status, headers (names in lower case), and a handle of
 * the body, to be read or closed.
 * Errors: `invalid-handle`, `not-ready`; `not-found` (no such host), `permission-denied` (an
 * address or a redirect that is not allowed), `remote-failed` (no connection, or it broke),
 * `timed-out`, `limit-exceeded` (redirects, headers).
 */
export function takeResponse(future: number): [number, [string, string][], number] {
  try {
    return plain(_http.takeResponse(asU32(future))) as [number, [string, string][], number];
  } catch (error) {
    throw called(error);
  }
}

/**
 * The next bytes of a body, as soon as there are any, at most `most` and at most 1 MiB; none at
 * the end. One read at a time.
 * Gives: bytes, by `takeBlob`.
 * Errors: `invalid-handle`, `invalid-argument`, `busy`, `limit-exceeded`; of the future:
 * `remote-failed`, `timed-out`, `limit-exceeded` (the body is too large).
 */
export function readBody(body: number, most: number): number {
  try {
    return _http.readBody(asU32(body), asU32(most));
  } catch (error) {
    throw called(error);
  }
}

/**
 * The URL that answered: the requested one, or the last one of the redirects.
 * Errors: `invalid-handle`.
 */
export function responseUrl(body: number): string {
  try {
    return _http.responseUrl(asU32(body));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Closes a body's handle, and the connection if the body has not been read to its end.
 * Errors: `invalid-handle`.
 */
export function closeBody(body: number): void {
  try {
    _http.closeBody(asU32(body));
  } catch (error) {
    throw called(error);
  }
}

// Interface `mcp`

/** Names of the servers that this user may use. */
export function mcpServers(): string[] {
  return plain(_mcp.mcpServers()) as string[];
}

/**
 * A server's tools, a JSON list of `{"name", "title", "description", "input_schema",
 * "output_schema"}`.
 * Gives: JSON, by `takeText`.
 * Errors: `not-found`, `limit-exceeded`; of the future: `remote-failed` (the server did not
 * start, died, or refused), `timed-out`, `limit-exceeded` (the answer is too large).
 */
export function mcpListTools(server: string): number {
  try {
    return _mcp.mcpListTools(asText(server));
  } catch (error) {
    throw called(error);
  }
}

/**
 * A tool's answer to `arguments`, a JSON object: a JSON object with `content` (a list of MCP
 * content blocks), `is_error` (the tool's own failure), and `structured` (what the tool's
 * output schema describes, or null).
 * Gives: JSON, by `takeText`.
 * Errors: `not-found`, `invalid-argument`, `limit-exceeded`; of the future: as
 * `mcpListTools`.
 */
export function mcpCallTool(server: string, tool: string, arguments_: string): number {
  try {
    return _mcp.mcpCallTool(asText(server), asText(tool), asText(arguments_));
  } catch (error) {
    throw called(error);
  }
}

// Interface `messaging`

/**
 * Sends to every current subscriber of a topic among this user's instances, this one included,
 * and returns how many there are. All or none: if the box of one subscriber is full, nothing
 * is sent and the error names it. So no subscriber misses a message.
 * Room: after `would-block`, by `broadcastRoom`.
 * Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large).
 */
export function broadcast(topic: string, message: string): number {
  try {
    return _messaging.broadcast(asText(topic), asText(message));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Ready when the box of every subscriber has room.
 * Gives: nothing, by `take`.
 * Errors: `invalid-argument`, `limit-exceeded`.
 */
export function broadcastRoom(topic: string): number {
  try {
    return _messaging.broadcastRoom(asText(topic));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Subscribes to what is broadcast from now on, and returns a handle. Two subscriptions of one
 * instance each receive everything.
 * Errors: `invalid-argument`, `limit-exceeded`.
 */
export function subscribe(topic: string): number {
  try {
    return _messaging.subscribe(asText(topic));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Ends a subscription. What it has not read is dropped; its open futures fail with
 * `cancelled`.
 * Errors: `invalid-handle`.
 */
export function unsubscribe(subscription: number): void {
  try {
    _messaging.unsubscribe(asU32(subscription));
  } catch (error) {
    throw called(error);
  }
}

/**
 * The subscription's next message, in the order of the broadcasts. Cancelled, it leaves the
 * message for the next call.
 * Gives: text, by `takeText`.
 * Errors: `invalid-handle`, `limit-exceeded`.
 */
export function nextMessage(subscription: number): number {
  try {
    return _messaging.nextMessage(asU32(subscription));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Appends to the user's work queue of a topic, which is bounded (back-pressure).
 * Room: after `would-block`, by `pushRoom`.
 * Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large, too many
 * queues).
 */
export function push(topic: string, message: string): void {
  try {
    _messaging.push(asText(topic), asText(message));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Ready when the work queue has room.
 * Gives: nothing, by `take`.
 * Errors: `invalid-argument`, `limit-exceeded`.
 */
export function pushRoom(topic: string): number {
  try {
    return _messaging.pushRoom(asText(topic));
  } catch (error) {
    throw called(error);
  }
}

/**
 * The oldest message of the work queue (FIFO); waits for one. Each message goes to exactly one
 * puller; pullers are served in the order of their calls. Cancelled, it leaves the message for
 * the next puller.
 * Gives: text, by `takeText`.
 * Errors: `invalid-argument`, `limit-exceeded`.
 */
export function pull(topic: string): number {
  try {
    return _messaging.pull(asText(topic));
  } catch (error) {
    throw called(error);
  }
}

// Interface `store`

/**
 * A key's value, or the error `not-found`.
 * Gives: bytes, by `takeBlob`.
 * Room: after `would-block`, by `storeRoom`.
 * Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
 */
export function storeGet(key: string): number {
  try {
    return _store.storeGet(asText(key));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Sets a key's value, new or instead of its old one.
 * Gives: nothing, by `take`.
 * Room: after `would-block`, by `storeRoom`.
 * Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large; of the future:
 * quota).
 */
export function storeSet(key: string, value: Uint8Array): number {
  try {
    return _store.storeSet(asText(key), asBytes(value));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Removes a key; idempotent: a missing key is no error.
 * Gives: nothing, by `take`.
 * Room: after `would-block`, by `storeRoom`.
 * Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
 */
export function storeDelete(key: string): number {
  try {
    return _store.storeDelete(asText(key));
  } catch (error) {
    throw called(error);
  }
}

/**
 * The keys that begin with `prefix` and come after `after`, in the order of their UTF-8 bytes,
 * at most `limit` (1 to 1000) of them. An empty `after` is before every key.
 * Gives: a list of texts, by `takeTexts`.
 * Room: after `would-block`, by `storeRoom`.
 * Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
 */
export function storeList(prefix: string, after: string, limit: number): number {
  try {
    return _store.storeList(asText(prefix), asText(after), asU32(limit));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Ready when operations are accepted again.
 * Gives: nothing, by `take`.
 * Errors: `limit-exceeded`.
 */
export function storeRoom(): number {
  try {
    return _store.storeRoom();
  } catch (error) {
    throw called(error);
  }
}

/**
 * Makes all changes at once, if each of the `expected` keys has just this value and none of
 * the `absent` keys exists; otherwise nothing changes and the future's error is `conflict`. At
 * most 1000 keys in conditions, and as many in changes; none twice.
 * Gives: nothing, by `take`.
 * Room: after `would-block`, by `storeRoom`.
 * Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large, too many keys;
 * of the future: quota).
 */
export function storeCommit(expected: Iterable<[string, Uint8Array]>, absent: Iterable<string>, writes: Iterable<[string, Uint8Array]>, deletes: Iterable<string>): number {
  try {
    return _store.storeCommit(Array.from(expected, ([first, second]): [string, Uint8Array] => [asText(first), asBytes(second)]), asTexts(absent), Array.from(writes, ([first, second]): [string, Uint8Array] => [asText(first), asBytes(second)]), asTexts(deletes));
  } catch (error) {
    throw called(error);
  }
}

// Interface `allocate`

/**
 * Allocates pages, all slots empty, and returns the first address of the range. If too few are
 * free the call waits, as long as pages of waiting instances can be evicted to host memory or
 * other instances are about to end.
 * Errors: `invalid-handle`, `invalid-argument`, `out-of-resources` (more than the model has),
 * `limit-exceeded`.
 */
export function allocKvpage(queue: number, count: number): number {
  try {
    return _allocate.allocKvpage(asU32(queue), asU32(count));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Frees pages once the commands queued before have taken effect; the addresses are invalid at
 * once.
 * Errors: `invalid-handle`.
 */
export function deallocKvpage(queue: number, pages: Iterable<number>): void {
  try {
    _allocate.deallocKvpage(asU32(queue), asU32s(pages));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Publishes pages under a name. They become immutable and reference-counted: they live until
 * the export is released, or ends because no instance imports it for as long as the operator
 * says (`expireExport`), and no instance maps them. Private to the user unless `shared`.
 * Errors: `invalid-handle`, `invalid-argument`, `already-exists`, `busy` (a queued command
 * still writes one of them: synchronize first), `limit-exceeded`.
 */
export function exportKvpage(queue: number, pages: Iterable<number>, name: string, shared: boolean): void {
  try {
    _allocate.exportKvpage(asU32(queue), asU32s(pages), asText(name), asBool(shared));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Maps exported pages into this instance, read-only, and returns spans of addresses.
 * Errors: `invalid-handle`, `not-found`, `limit-exceeded`.
 */
export function importKvpage(queue: number, name: string): number[] {
  try {
    return plain(_allocate.importKvpage(asU32(queue), asText(name))) as number[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Names of the exports of the queue's model that this user may import.
 * Errors: `invalid-handle`.
 */
export function listExports(queue: number): string[] {
  try {
    return plain(_allocate.listExports(asU32(queue))) as string[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Withdraws an export of this user. Pages already mapped stay.
 * Errors: `invalid-handle`, `not-found`, `permission-denied`.
 */
export function releaseExport(queue: number, name: string): void {
  try {
    _allocate.releaseExport(asU32(queue), asText(name));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Sets after how long without an import an export of this user ends, as by `releaseExport`.
 * The time starts again now, and with each import.
 * Errors: `invalid-handle`, `not-found`, `permission-denied`, `invalid-argument` (no time),
 * `limit-exceeded` (longer than the operator allows).
 */
export function expireExport(queue: number, name: string, nanoseconds: bigint | number): void {
  try {
    _allocate.expireExport(asU32(queue), asText(name), asInteger(nanoseconds, 0n, 18446744073709551616n));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Says what pages are worth when memory is short, beside the user's other pages: those of lower
 * `priority` leave first, the prefix cache and for host memory. Pages have 0 until told; above
 * it they have the priority for this time, below it until they are found by `matchPrefix`.
 * Other users' pages leave and stay as if nothing had been said.
 * Errors: `invalid-handle`, `swapped-out`, `invalid-argument` (a priority outside -100 to 100).
 */
export function retainKvpage(queue: number, pages: Iterable<number>, priority: number, nanoseconds: bigint | number): void {
  try {
    _allocate.retainKvpage(asU32(queue), asU32s(pages), Number(asInteger(priority, -2147483648n, 2147483648n)), asInteger(nanoseconds, 0n, 18446744073709551616n));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Copies `count` slots (content, position, mask) from `sourcePage` at `sourceSlot` to
 * `targetPage` at `targetSlot`. The source slots must be filled, and no empty slot may be
 * left before the target's.
 * Errors: `invalid-handle`, `invalid-argument`, `page-full`, `immutable`, `limit-exceeded`.
 */
export function copyKvpage(queue: number, sourcePage: number, sourceSlot: number, targetPage: number, targetSlot: number, count: number): void {
  try {
    _allocate.copyKvpage(asU32(queue), asU32(sourcePage), asU32(sourceSlot), asU32(targetPage), asU32(targetSlot), asU32(count));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Number of filled (live or masked) slots of each page, as if every queued command had run.
 * Errors: `invalid-handle`.
 */
export function kvpageUsed(queue: number, pages: Iterable<number>): number[] {
  try {
    return plain(_allocate.kvpageUsed(asU32(queue), asU32s(pages))) as number[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Empties the slots of pages from a number on: page `i` of the list keeps its first `used[i]`
 * slots. Commands queued before still read and write the slots as they were; later ones fill
 * them again. That is how steps that were queued ahead and are not needed are undone.
 * Errors: `invalid-handle`, `invalid-argument` (more than are filled, lengths that disagree, a
 * page twice), `immutable`.
 */
export function truncateKvpage(queue: number, pages: Iterable<number>, used: Iterable<number>): void {
  try {
    _allocate.truncateKvpage(asU32(queue), asU32s(pages), asU32s(used));
  } catch (error) {
    throw called(error);
  }
}

/** Allocates embeds and returns the first address of the range. Errors: as `allocKvpage`. */
export function allocEmb(queue: number, count: number): number {
  try {
    return _allocate.allocEmb(asU32(queue), asU32(count));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Frees embeds once the commands queued before have taken effect; the addresses are invalid at
 * once.
 * Errors: `invalid-handle`.
 */
export function deallocEmb(queue: number, embeds: Iterable<number>): void {
  try {
    _allocate.deallocEmb(asU32(queue), asU32s(embeds));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Copies embeds, each of `sources` to the one of `targets` at the same index, when the command
 * runs. A source may occur several times. `positions` (spans, as of `embedTxt`) are those of
 * the targets; if empty, each target gets its source's. All sources are read before a target
 * is written.
 * Errors: `invalid-handle`, `invalid-argument` (lengths that disagree, a source that nothing
 * was written to, a target twice, a position outside the model's context), `limit-exceeded`
 * (more than `max_batch_tokens`, too many queued commands).
 */
export function copyEmb(queue: number, sources: Iterable<number>, targets: Iterable<number>, positions: Iterable<number>): void {
  try {
    _allocate.copyEmb(asU32(queue), asU32s(sources), asU32s(targets), asU32s(positions));
  } catch (error) {
    throw called(error);
  }
}

/**
 * State of the queue's model's pools, a JSON object: `kv_pages`, `kv_pages_free` (of these
 * `kv_pages_cached` hold prefixes that are found until the pages are needed),
 * `host_pages` and `host_pages_free` (for swapped pages), `embeds`, `embeds_free`, and this
 * instance's `kv_pages_mine`, `host_pages_mine`, `embeds_mine`.
 * Errors: `invalid-handle`.
 */
export function poolStats(queue: number): string {
  try {
    return _allocate.poolStats(asU32(queue));
  } catch (error) {
    throw called(error);
  }
}

// Interface `forward`

/**
 * Runs the model over the input embeds, in order.
 *
 * Each input attends to every live slot of `inputPages`, and to those inputs whose position
 * is lower, or equal and not after it in the list. An explicit `mask` replaces this rule: one
 * row per input, flattened as `[runs, length, length, ...]` for each row, the lengths
 * alternating hidden, visible, hidden, ... over the columns: the filled slots of `inputPages`
 * in order, then the inputs. A masked slot is never attended to, whatever the mask says.
 *
 * If `outputPages` is not empty, the inputs' keys and values go into its empty slots, from
 * the first on. The last inputs' hidden states go into `outputEmbeds`, as many as it names.
 * Pages may be input and output at once: the inputs see the slots filled before this call.
 *
 * Errors: `invalid-handle`, `invalid-argument`, `page-full` (too little room), `immutable`,
 * `limit-exceeded` (more inputs than `max_batch_tokens`, or more than 512 by default that can
 * only run at once, such as those of a forward without output pages; a mask of over 262144
 * numbers or 2^28 cells; too many queued commands), `unsupported` (a sampler's `attend` program
 * is told of it, and it has a mask, no output pages, or positions that fall).
 */
export function forward(queue: number, inputPages: Iterable<number>, inputEmbeds: Iterable<number>, outputPages: Iterable<number>, outputEmbeds: Iterable<number>, mask: Iterable<number>): void {
  try {
    _forward.forward(asU32(queue), asU32s(inputPages), asU32s(inputEmbeds), asU32s(outputPages), asU32s(outputEmbeds), asU32s(mask));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Sets which filled slots of pages are masked: one word per page, bit `i` set hides slot `i`.
 * A bit of an empty slot is an error.
 * Errors: `invalid-handle`, `invalid-argument`, `immutable`, `limit-exceeded`.
 */
export function maskKvpage(queue: number, pages: Iterable<number>, masks: Iterable<number>): void {
  try {
    _forward.maskKvpage(asU32(queue), asU32s(pages), asU32s(masks));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Gives all that is in pages other positions, `distance` further on: keys are turned to them,
 * so that later inputs see them there. What the tokens have seen stays as it was; positions
 * need not be those of a context any more, as a gap is closed after pages were left out.
 * Errors: `invalid-handle`, `invalid-argument` (further than the model's context), `immutable`,
 * `swapped-out`, `limit-exceeded`; `unsupported`: a key is a latent, or a layer has a state.
 */
export function shiftKvpage(queue: number, pages: Iterable<number>, distance: number): void {
  try {
    _forward.shiftKvpage(asU32(queue), asU32s(pages), Number(asInteger(distance, -2147483648n, 2147483648n)));
  } catch (error) {
    throw called(error);
  }
}

// Interface `adapter`

/**
 * Names of the adapters that are loaded for a model.
 * Errors: `unknown-model`, `unsupported`.
 */
export function availableAdapters(model: string): string[] {
  try {
    return plain(_adapter.availableAdapters(asText(model))) as string[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * As `forward`, through an adapter. Keys and values in the pages are those of the
 * adapter that computed them. An adapter stays loaded as long as an instance that has used it
 * is alive.
 * Errors: as `forward`, and `not-found` (no such adapter), `unsupported`.
 */
export function forwardWithAdapter(queue: number, adapter: string, inputPages: Iterable<number>, inputEmbeds: Iterable<number>, outputPages: Iterable<number>, outputEmbeds: Iterable<number>, mask: Iterable<number>): void {
  try {
    _adapter.forwardWithAdapter(asU32(queue), asText(adapter), asU32s(inputPages), asU32s(inputEmbeds), asU32s(outputPages), asU32s(outputEmbeds), asU32s(mask));
  } catch (error) {
    throw called(error);
  }
}

// Interface `introspect`
/**
 * The rows of the answer: one row (the average over layers and heads), one row per layer (the
 * average over its heads), or one row per head, layer by layer.
 */
export type Detail = "total" | "layers" | "heads";

/**
 * As `forward`, and what the last `observed` inputs attend to. An empty `adapter` means
 * none.
 * Gives: attention, by `takeAttention`.
 * Errors: as `forwardWithAdapter`, and `invalid-argument` (not 1 to as many as inputs are
 * observed), `limit-exceeded` (an answer of over 524288 numbers, inputs times columns
 * over 2^28), `unsupported`.
 */
export function forwardWithAttention(queue: number, inputPages: Iterable<number>, inputEmbeds: Iterable<number>, outputPages: Iterable<number>, outputEmbeds: Iterable<number>, mask: Iterable<number>, observed: number, detail: Detail, adapter: string): number {
  try {
    return _introspect.forwardWithAttention(asU32(queue), asU32s(inputPages), asU32s(inputEmbeds), asU32s(outputPages), asU32s(outputEmbeds), asU32s(mask), asU32(observed), asCase(detail, ["total", "layers", "heads"]), asText(adapter));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future of attention: how many rows, and their numbers, one row after the
 * other. Columns are those of a mask: the filled slots of the input pages in order, then the
 * inputs. A number is the sum over the observed inputs of their attention probabilities (of a
 * softmax in float32, so each input adds 1 to a row, or 0 if it sees nothing); what is hidden
 * has 0.
 * Fields of `attention`: `rows`, `numbers`.
 * Errors: `invalid-handle`, `not-ready`, or the error of the operation.
 */
export function takeAttention(future: number): [number, number[]] {
  try {
    return plain(_introspect.takeAttention(asU32(future))) as [number, number[]];
  } catch (error) {
    throw called(error);
  }
}

// Interface `offload`

/**
 * Moves pages to the server's host memory. Idempotent: pages that are swapped out stay so.
 * Errors: `invalid-handle` (also for a page twice), `busy` (a page is shared: an export,
 * another instance or another address references it), `out-of-resources` (host memory is
 * full), `limit-exceeded`.
 */
export function swapOut(queue: number, pages: Iterable<number>): void {
  try {
    _offload.swapOut(asU32(queue), asU32s(pages));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Brings pages back as they were, and discarded ones empty. Pages in the pool stay there. As
 * with `allocKvpage`, instances launched later are ended if too few pages are free.
 * Errors: `invalid-handle` (also for a page twice), `out-of-resources`, `limit-exceeded`.
 */
export function swapIn(queue: number, pages: Iterable<number>): void {
  try {
    _offload.swapIn(asU32(queue), asU32s(pages));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Drops this instance's reference to the content of pages, wherever they are. The addresses
 * stay valid: `swapIn` puts empty pages there. Other references to a page keep its content.
 * Errors: `invalid-handle` (also for a page twice).
 */
export function discard(queue: number, pages: Iterable<number>): void {
  try {
    _offload.discard(asU32(queue), asU32s(pages));
  } catch (error) {
    throw called(error);
  }
}

/**
 * The costs of keeping, swapping and recomputing pages, measured at the model's start, a JSON
 * object: `page_bytes`, `page_size` (tokens), `swap_out` and `swap_in` (null without host
 * memory, else `seconds`, the fixed part, and `bytes_per_second`), `prefill` (`seconds` of one
 * forward of `tokens`, and `fit`, the `[c, a, b]` of `c + a n + b n^2` seconds), `decode`
 * (`seconds` of one step of `sequences`), `out_beside_kernels` (whether a GPU goes on while
 * pages leave). The server's policies go on from there by what it measures later.
 * Errors: `unknown-model`, `unsupported`.
 */
export function kvCosts(model: string): string {
  try {
    return _offload.kvCosts(asText(model));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Advises what to do with pages while the program waits for a tool, by a policy of the server
 * (InferCept). It changes nothing. `wait` is a JSON object with optional keys: `tool`, a name
 * of the program's own; `policy`, one of `preserve`, `discard`, `swap`, `min-waste`,
 * `cheapest`, or the operator's; `elapsed_ns` of the wait; `expected_ns`, its expected total
 * duration, if known; `can_discard`, false if the program cannot recompute the tokens. The
 * answer is a JSON object: `choice`, one of `preserve`, `discard`, `swap`; `pages`, how many
 * to swap out now; `seconds`, after which to ask again; `remaining`, the expected seconds left
 * (from `expected_ns`, else from earlier waits of this user); `chunk`, the tokens to compute
 * at once after a discard; `restore`, the seconds until the context is back after this choice.
 * Errors: `invalid-handle` (also for a page twice), `invalid-argument`, `unsupported`.
 */
export function advise(queue: number, pages: Iterable<number>, wait: string): string {
  try {
    return _offload.advise(asU32(queue), asU32s(pages), asText(wait));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Reports the duration of a finished wait for a tool, for `advise` to this and other instances
 * of the user.
 * Errors: `limit-exceeded` (the name is too long).
 */
export function noteWait(tool: string, nanoseconds: bigint | number): void {
  try {
    _offload.noteWait(asText(tool), asInteger(nanoseconds, 0n, 18446744073709551616n));
  } catch (error) {
    throw called(error);
  }
}

// Interface `prefix-cache`

/**
 * Maps the cached pages of the longest prefix of `tokens`, full pages only, and returns spans
 * of them, and 0. They are immutable; `adapter` is that of the forwards that filled them, an
 * empty text means none. If queued commands of any instance are computing more of these
 * tokens, there are no spans, but a future that is ready when they have run or failed: `take`
 * it, and call again.
 * Errors: `invalid-handle`, `unsupported`, `not-found` (no such adapter), `limit-exceeded`.
 */
export function matchPrefix(queue: number, adapter: string, tokens: Iterable<number>): [number[], number] {
  try {
    return plain(_prefixCache.matchPrefix(asU32(queue), asText(adapter), asU32s(tokens))) as [number[], number];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Inserts the first pages of a text, in order. Pages that are full, or will be once the queued
 * commands have run, become immutable and are found from then on; returns how many, 0 if the
 * server does not know what the pages hold. The cache keeps unreferenced pages until their
 * memory is needed, and evicts the least recently used first (LRU).
 * Errors: `invalid-handle`, `swapped-out`.
 */
export function insertPrefix(queue: number, pages: Iterable<number>): number {
  try {
    return _prefixCache.insertPrefix(asU32(queue), asU32s(pages));
  } catch (error) {
    throw called(error);
  }
}

// Interface `input-text`

/**
 * Embeds tokens at positions into embeds; the three have the same length. `positions` are
 * spans, like handles: `[0, 9]` is the positions 0 to 8.
 * Errors: `invalid-handle`, `invalid-argument` (a token outside the vocabulary, a position
 * outside the model's context, lengths that disagree), `limit-exceeded`.
 */
export function embedTxt(queue: number, tokens: Iterable<number>, positions: Iterable<number>, embeds: Iterable<number>): void {
  try {
    _inputText.embedTxt(asU32(queue), asU32s(tokens), asU32s(positions), asU32s(embeds));
  } catch (error) {
    throw called(error);
  }
}

// Interface `input-image`

/**
 * The number of embeds that an image of this size in pixels takes.
 * Errors: `unknown-model`, `unsupported` (the model reads text only), `invalid-argument` (no
 * pixels, or one side more than 200 times the other), `limit-exceeded` (too many pixels).
 */
export function numEmbsNeeded(model: string, width: number, height: number): number {
  try {
    return _inputImage.numEmbsNeeded(asText(model), asU32(width), asU32(height));
  } catch (error) {
    throw called(error);
  }
}

/**
 * The number of positions that an image of this size in pixels takes: what follows it stands so
 * much further on. They are fewer than its embeds where a model sees rows and columns (Qwen 3
 * VL): as many as the longer of the two has embeds.
 * Errors: as `numEmbsNeeded`.
 */
export function numPositionsNeeded(model: string, width: number, height: number): number {
  try {
    return _inputImage.numPositionsNeeded(asText(model), asU32(width), asU32(height));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Width and height of an image file as displayed (Exif orientation applied).
 * Errors: `invalid-argument` (no image).
 */
export function imageSize(image: Uint8Array): [number, number] {
  try {
    return plain(_inputImage.imageSize(asBytes(image))) as [number, number];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Embeds an image file. There are as many embeds as `numEmbsNeeded` says, row by row, and as
 * many positions (spans, as of `embedTxt`) as `numPositionsNeeded` says. Where these are
 * fewer, they follow one another, and all embeds stand at the first of them: their rows and
 * columns are the embeds' own. An error beyond the file's header fails the command when it
 * runs: the next `synchronize` is `invalid-argument`.
 * Errors: `invalid-handle`, `unsupported`, `invalid-argument`, `limit-exceeded`.
 */
export function embedImg(queue: number, image: Uint8Array, positions: Iterable<number>, embeds: Iterable<number>): void {
  try {
    _inputImage.embedImg(asU32(queue), asBytes(image), asU32s(positions), asU32s(embeds));
  } catch (error) {
    throw called(error);
  }
}

// Interface `tokenize`

/**
 * Token ids of a text; special tokens written in the text are recognised, none is added.
 * Errors: `unknown-model`, `limit-exceeded` (text too long).
 */
export function tokenize(model: string, text: string): number[] {
  try {
    return plain(_tokenize.tokenize(asText(model), asText(text))) as number[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD.
 * Errors: `unknown-model`, `invalid-argument`.
 */
export function detokenize(model: string, tokens: Iterable<number>): string {
  try {
    return _tokenize.detokenize(asText(model), asU32s(tokens));
  } catch (error) {
    throw called(error);
  }
}

/**
 * The bytes of every token, by id. Large: ask once.
 * Errors: `unknown-model`.
 */
export function getVocabs(model: string): Uint8Array[] {
  try {
    return plain(_tokenize.getVocabs(asText(model))) as Uint8Array[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Special tokens, as their texts and ids.
 * Errors: `unknown-model`.
 */
export function specialTokens(model: string): [string, number][] {
  try {
    return plain(_tokenize.specialTokens(asText(model))) as [string, number][];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Renders messages, a JSON list of `{"role": ..., "content": ...}`, with the model's chat
 * template, as `transformers` does. An object instead of the list has the template's arguments:
 * `messages`, and `tools`, `documents`, `enable_thinking` or what else it takes; there,
 * `chat_template` names one of several templates. `addGenerationPrompt` appends what starts
 * the assistant's turn. Control tokens in messages of users and tools are mere text, kept apart
 * by code points that `tokenize` drops, unless the object has `control_tokens`, true.
 * Errors: `unknown-model`, `unsupported` (the model has no template, or a broken one),
 * `invalid-argument` (the template refuses the messages), `limit-exceeded` (it takes too long).
 */
export function applyChatTemplate(model: string, messages: string, addGenerationPrompt: boolean): string {
  try {
    return _tokenize.applyChatTemplate(asText(model), asText(messages), asBool(addGenerationPrompt));
  } catch (error) {
    throw called(error);
  }
}

// Interface `output-text`

/**
 * The `k` most likely next tokens after an output embed. `k` is at least 1; more than the
 * vocabulary means the whole vocabulary; 256 is usual.
 * Gives: a distribution, by `takeDist`.
 * Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
 */
export function getNextDist(queue: number, embed: number, k: number): number {
  try {
    return _outputText.getNextDist(asU32(queue), asU32(embed), asU32(k));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future of a distribution: token ids, and their probabilities (of the
 * softmax over the whole vocabulary, temperature 1), most likely first.
 * Fields of `distribution`: `tokens`, `probabilities`.
 * Errors: `invalid-handle`, `not-ready`, or the error of the operation.
 */
export function takeDist(future: number): [number[], number[]] {
  try {
    return plain(_outputText.takeDist(asU32(future))) as [number[], number[]];
  } catch (error) {
    throw called(error);
  }
}

/**
 * The mean of the hidden states in embeds (spans), of one embed its own. Those that a forward
 * has written are after the model's final norm.
 * Gives: numbers, by `takeHidden`.
 * Errors: `invalid-handle`, `invalid-argument` (no embed, or one that holds nothing yet),
 * `limit-exceeded` (more embeds than `max_batch_tokens`, too many queued commands).
 */
export function getHidden(queue: number, embeds: Iterable<number>): number {
  try {
    return _outputText.getHidden(asU32(queue), asU32s(embeds));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future of a hidden state: its numbers.
 * Errors: `invalid-handle`, `not-ready`, or the error of the operation.
 */
export function takeHidden(future: number): number[] {
  try {
    return plain(_outputText.takeHidden(asU32(future))) as number[];
  } catch (error) {
    throw called(error);
  }
}

// Interface `sample`

/**
 * Makes a sampler of the queue's model. `parameters` is a JSON object; an empty text is `{}`:
 * `seed` (0 to 2^64 - 1; random by default), `logprobs` (0; the number of most likely tokens
 * that `takeSample` also reports, 256 at most), and *fields*, such as `temperature` and
 * `top_p`, which say what the logits go through behind the mask of `sampleMasked` or
 * `grammar`: docs/device-programs.md has all of them, in the order of their steps.
 *
 * In the place of fields there may be a *device program*: `program` is its name in the library,
 * or a list of texts in its language, its own first, each with a file's name and the number of
 * its first line; `constants` an object of values that the texts name, and `given` one of
 * values for its state. The guest waits while texts are read that the server has not seen.
 *
 * Beside all of that, `attend` is a device program of the stage of this name, an object of
 * `program`, `constants` and `given`: it chooses, layer by layer, what the forwards of `step`
 * and of runs of this sampler read of their context. It is `unsupported` by models without keys
 * or weights of heads. One that takes weights is also told those of its prompt: of the forwards
 * of this queue from here up to the sampler's first choice, which read all that they may.
 * Errors: `invalid-handle`, `invalid-argument`, `unsupported`, `limit-exceeded`,
 * `out-of-resources`.
 */
export function createSampler(queue: number, parameters: string): number {
  try {
    return _sample.createSampler(asU32(queue), asText(parameters));
  } catch (error) {
    throw called(error);
  }
}

/**
 * What a sampler's device programs need, a JSON object: `looks_back` (to be told by
 * `feedSampler` of tokens that it did not choose), `counts` (how often each occurs),
 * `has_state` (that changes from token to token), `beside` (how many calls of `mixLogits`
 * before a choice), `window` (how many of the prompt's last inputs `attend` takes the weights
 * of: 0 for all, null for none).
 * Errors: `invalid-handle`.
 */
export function samplerFacts(queue: number, sampler: number): string {
  try {
    return _sample.samplerFacts(asU32(queue), asU32(sampler));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Ends a sampler once the commands queued before have taken effect; its handle is invalid at
 * once.
 * Errors: `invalid-handle`.
 */
export function destroySampler(queue: number, sampler: number): void {
  try {
    _sample.destroySampler(asU32(queue), asU32(sampler));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Tells a sampler of tokens that it did not choose, for programs that look back: `generated`
 * ones, or those of the prompt. It knows the tokens that it chooses by itself.
 * Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
 */
export function feedSampler(queue: number, sampler: number, tokens: Iterable<number>, generated: boolean): void {
  try {
    _sample.feedSampler(asU32(queue), asU32(sampler), asU32s(tokens), asBool(generated));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Asks for the state of a sampler that is a device program, after the choices queued before:
 * a JSON object that has, of each name that changes, a number, a boolean, or lists of them;
 * null is a number that JSON has not.
 * Gives: a JSON object, by `takeText`.
 * Errors: `invalid-handle`, `invalid-argument` (no device program), `limit-exceeded`.
 */
export function readState(queue: number, sampler: number): number {
  try {
    return _sample.readState(asU32(queue), asU32(sampler));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Gives names of a sampler that is a device program other values, from the next choice queued
 * on: a JSON object with values as `createSampler` takes them. What changes goes on from
 * there, what does not has the value until it is given another.
 * Errors: `invalid-handle`, `invalid-argument` (no device program, no such name, a value of
 * another kind or size), `limit-exceeded`.
 */
export function writeState(queue: number, sampler: number, state: string): void {
  try {
    _sample.writeState(asU32(queue), asU32(sampler), asText(state));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Gives the next choice of a device program the logits after an embed, for it to read: of this
 * model or another one with as many tokens. Called before a choice for each context beside that
 * the program reads, in their order; a run can't have any.
 * Errors: `invalid-handle`, `invalid-argument` (it reads no more, or models of different
 * size), `limit-exceeded`, `out-of-resources`.
 */
export function mixLogits(queue: number, embed: number, samplerQueue: number, sampler: number): void {
  try {
    _sample.mixLogits(asU32(queue), asU32(embed), asU32(samplerQueue), asU32(sampler));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Chooses a token that follows an output embed. The sampler moves on even if the future is
 * cancelled.
 * Gives: a token, by `takeSample`.
 * Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
 */
export function sample(queue: number, embed: number, sampler: number): number {
  try {
    return _sample.sample(asU32(queue), asU32(embed), asU32(sampler));
  } catch (error) {
    throw called(error);
  }
}

/**
 * As `sample`, among the tokens that a mask allows: bit `t % 32` of word `t / 32` is token
 * `t`.
 * Gives: a token, by `takeSample`.
 * Errors: as `sample`.
 */
export function sampleMasked(queue: number, embed: number, sampler: number, mask: Iterable<number>): number {
  try {
    return _sample.sampleMasked(asU32(queue), asU32(embed), asU32(sampler), asU32s(mask));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future of a token: the token, its log-probability, and the most likely
 * tokens, most likely first, with theirs. Log-probabilities are those of the model's own
 * distribution, as in `takeDist`: before masks, and before what the sampler does.
 * Fields of `sampled`: `token`, `logprob`, `topTokens`, `topLogprobs`.
 * Errors: `invalid-handle`, `not-ready`; `invalid-argument` (every token is ruled out); or the
 * error of the operation.
 */
export function takeSample(future: number): [number, number, number[], number[]] {
  try {
    return plain(_sample.takeSample(asU32(future))) as [number, number, number[], number[]];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Embeds the token of the sampler's latest `sample` call, at a position, whether or not it is
 * known already: the next steps can be queued before this one has run. If no token could be
 * chosen, this command fails, and the commands behind it in its queue with it.
 * Errors: `invalid-handle`, `invalid-argument` (nothing was sampled yet), `limit-exceeded`.
 */
export function embedSampled(queue: number, sampler: number, position: number, embed: number): void {
  try {
    _sample.embedSampled(asU32(queue), asU32(sampler), asU32(position), asU32(embed));
  } catch (error) {
    throw called(error);
  }
}

/**
 * A generation's next step, in one call: `embedSampled`; the forward of that embed over the
 * input pages, through an adapter if one is named, with keys and values into a page and the
 * hidden state into the embed itself; and `sample` of it, whose future is returned. An error
 * leaves none of them queued.
 * Gives: a token, by `takeSample`.
 * Errors: as of these three functions, and of `forwardWithAdapter`.
 */
export function step(queue: number, sampler: number, position: number, embed: number, inputPages: Iterable<number>, outputPage: number, adapter: string): number {
  try {
    return _sample.step(asU32(queue), asU32(sampler), asU32(position), asU32(embed), asU32s(inputPages), asU32(outputPage), asText(adapter));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Starts a *run*, which chooses up to `most` tokens in one call, and returns its handle. The
 * first token is `sample` of `embed`. Each token is followed by the next as by `step`: it goes
 * through the model at the next position, from `position` on, over the input pages and all
 * that the run has written; keys and values fill the output pages and then pages that the run
 * takes itself. Its hidden states go into `ownEmbed`; `embed` keeps what it holds. The run is
 * over with the first of the `stops`, with its last token, or with an error.
 *
 * Commands behind it in its queue wait until it is over. Until `endRun` the output pages are
 * `immutable` and show the fill counts that they have now. Of the output pages only the first
 * that is not full may hold something, and then it has to be among the input pages.
 * Errors: as of `step`; `invalid-argument` (no token wanted, or more than the model's context
 * holds).
 */
export function startRun(queue: number, sampler: number, embed: number, position: number, ownEmbed: number, inputPages: Iterable<number>, outputPages: Iterable<number>, adapter: string, most: number, stops: Iterable<number>): number {
  try {
    return _sample.startRun(asU32(queue), asU32(sampler), asU32(embed), asU32(position), asU32(ownEmbed), asU32s(inputPages), asU32s(outputPages), asText(adapter), asU32(most), asU32s(stops));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Has a run guess its next tokens from now on, up to `most` of them at a time, 1 to 16: what
 * came after its last tokens where they came before, in `text`, the tokens of its context, or
 * among its own (prompt lookup). Guesses go through the model together with the token before
 * them, and those stand that are what the sampler chooses anyway: the tokens are the same as
 * without, at any temperature, and come sooner where a text repeats. The server guesses only
 * where that has been worth its time. Nothing changes where choices depend on more than the
 * text and their number, as with a device program that has state or looks at the text, and for
 * models with recurrent layers. Other texts that this one may repeat may stand before the
 * context's tokens. With no text, nothing is looked up: the guesses are what the sampler chose
 * behind the first wrong guess of the step before, then its last token again (Jacobi decoding).
 * Errors: `invalid-handle`, `invalid-argument` (no guess, or more than 16; a number that is no
 * token; more tokens than the model's context holds).
 */
export function speculate(queue: number, run: number, text: Iterable<number>, most: number): void {
  try {
    _sample.speculate(asU32(queue), asU32(run), asU32s(text), asU32(most));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Has a run guess its next tokens from now on as another run chooses them, of a smaller model
 * with the same vocabulary: up to `most` at a time, 1 to 16. Both have begun behind the same
 * text, and the other one has just been started. It goes as far as guesses are wanted then, and
 * its tokens cannot be waited for; what was guessed wrongly is undone, in its pages too, and
 * `takeTokens` gives what it has. The tokens of `run` are the same as without.
 * Errors: `invalid-handle`, `unsupported`, `invalid-argument` (no guess, or more than 16; a run
 * of another vocabulary, one whose tokens were taken or waited for, or one that guesses or
 * drafts itself).
 */
export function speculateWith(queue: number, run: number, draftQueue: number, draftRun: number, most: number): void {
  try {
    _sample.speculateWith(asU32(queue), asU32(run), asU32(draftQueue), asU32(draftRun), asU32(most));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Ready when `count` tokens of a run are there that were not taken, or the run is over. The run
 * goes on by itself to a few tokens more than were asked for.
 * Gives: nothing, by `take`.
 * Errors: `invalid-handle`, `invalid-argument` (no token), `limit-exceeded`.
 */
export function runProgress(queue: number, run: number, count: number): number {
  try {
    return _sample.runProgress(asU32(queue), asU32(run), asU32(count));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Takes the tokens of a run that are there and were not taken; none if the run is over. The
 * token that has ended the run is the last one.
 * Errors: `invalid-handle`; or the error that has ended the run, once all tokens before it are
 * taken.
 */
export function takeTokens(queue: number, run: number): number[] {
  try {
    return plain(_sample.takeTokens(asU32(queue), asU32(run))) as number[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Waits until `count` tokens of a run can be taken or it is over, and takes all that are
 * there, in one call.
 * Errors: as of `runProgress` and `takeTokens`.
 */
export function nextTokens(queue: number, run: number, count: number): number[] {
  try {
    return plain(_sample.nextTokens(asU32(queue), asU32(run), asU32(count))) as number[];
  } catch (error) {
    throw called(error);
  }
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
 * Gives: the text and where it has ended, by `takeRunText`.
 * Errors: `invalid-handle`, `invalid-argument` (an empty string, a span without its count),
 * `limit-exceeded` (more than 1024 characters in `ends`, or 512 spans).
 */
export function runText(queue: number, run: number, before: Iterable<number>, ends: Iterable<string>, hidden: Iterable<number>, toClient: boolean): number {
  try {
    return _sample.runText(asU32(queue), asU32(run), asU32s(before), asTexts(ends), asU32s(hidden), asBool(toClient));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future of `runText`: the text, how many of the run's tokens belong to it
 * with the one that has ended it, and the number of the string in `ends` that has ended it, or
 * how many there are if none has. Those tokens are what `endRun` should keep.
 * Errors: `invalid-handle`, `not-ready`; or the error that has ended the run.
 */
export function takeRunText(future: number): [string, number, number] {
  try {
    return plain(_sample.takeRunText(asU32(future))) as [string, number, number];
  } catch (error) {
    throw called(error);
  }
}

/**
 * Ends a run, over or not. Its first `count` tokens stand, and all that comes after them is
 * undone: the pages hold these tokens but the last, and the sampler goes on as if it had
 * chosen no more. Returns, as spans, the pages that the run has taken and that hold tokens;
 * the others are given back.
 * Errors: `invalid-handle`, `invalid-argument` (more tokens than there are).
 */
export function endRun(queue: number, run: number, count: number): number[] {
  try {
    return plain(_sample.endRun(asU32(queue), asU32(run), asU32(count))) as number[];
  } catch (error) {
    throw called(error);
  }
}

// Interface `grammar`

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
 * Gives: the grammar's handle, by `takeGrammar`.
 * Errors: `unknown-model`, `invalid-argument`, `limit-exceeded`; of the future:
 * `invalid-argument` (the grammar is wrong), `limit-exceeded` (too large or too slow),
 * `unsupported`.
 */
export function compileGrammar(model: string, kind: string, text: string): number {
  try {
    return _grammar.compileGrammar(asText(model), asText(kind), asText(text));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes a ready future of a grammar and returns the grammar's handle.
 * Errors: `invalid-handle`, `not-ready`, `limit-exceeded`, or the error of the operation.
 */
export function takeGrammar(future: number): number {
  try {
    return _grammar.takeGrammar(asU32(future));
  } catch (error) {
    throw called(error);
  }
}

/** Ends a grammar's handle; its matchers go on. Errors: `invalid-handle`. */
export function releaseGrammar(grammar: number): void {
  try {
    _grammar.releaseGrammar(asU32(grammar));
  } catch (error) {
    throw called(error);
  }
}

/** A matcher at a grammar's start. Errors: `invalid-handle`, `limit-exceeded`. */
export function createMatcher(grammar: number): number {
  try {
    return _grammar.createMatcher(asU32(grammar));
  } catch (error) {
    throw called(error);
  }
}

/** Ends a matcher. Errors: `invalid-handle`. */
export function destroyMatcher(matcher: number): void {
  try {
    _grammar.destroyMatcher(asU32(matcher));
  } catch (error) {
    throw called(error);
  }
}

/**
 * Consumes tokens, all or none of them, at most 1024; whether the text may end then.
 * Errors: `invalid-handle`, `invalid-argument` (a token that is not allowed), `busy`,
 * `limit-exceeded` (the grammar is too complex).
 */
export function advance(matcher: number, tokens: Iterable<number>): boolean {
  try {
    return _grammar.advance(asU32(matcher), asU32s(tokens));
  } catch (error) {
    throw called(error);
  }
}

/** Takes the last `count` tokens back. Errors: `invalid-handle`, `invalid-argument`, `busy`. */
export function rollback(matcher: number, count: number): void {
  try {
    _grammar.rollback(asU32(matcher), asU32(count));
  } catch (error) {
    throw called(error);
  }
}

/**
 * How many of the tokens, from the first on, `advance` would consume; nothing changes.
 * Errors: `invalid-handle`, `invalid-argument`, `busy`.
 */
export function countAllowed(matcher: number, tokens: Iterable<number>): number {
  try {
    return _grammar.countAllowed(asU32(matcher), asU32s(tokens));
  } catch (error) {
    throw called(error);
  }
}

/** Whether the text may end here. Errors: `invalid-handle`. */
export function isAccepting(matcher: number): boolean {
  try {
    return _grammar.isAccepting(asU32(matcher));
  } catch (error) {
    throw called(error);
  }
}

/** Whether the text must end here, or has ended with a stop token. Errors: `invalid-handle`. */
export function isFinished(matcher: number): boolean {
  try {
    return _grammar.isFinished(asU32(matcher));
  } catch (error) {
    throw called(error);
  }
}

/**
 * The tokens allowed next: bit `t % 32` of word `t / 32` is token `t`. As `sampleMasked`
 * takes it.
 * Errors: `invalid-handle`, `busy`, `limit-exceeded` (the grammar is too complex).
 */
export function grammarMask(matcher: number): number[] {
  try {
    return plain(_grammar.grammarMask(asU32(matcher))) as number[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * The tokens that the grammar forces next, possibly none, at most 1024 at once; they are not
 * consumed.
 * Errors: `invalid-handle`, `busy`.
 */
export function grammarForced(matcher: number): number[] {
  try {
    return plain(_grammar.grammarForced(asU32(matcher))) as number[];
  } catch (error) {
    throw called(error);
  }
}

/**
 * As `sample`, among the tokens that the matcher allows; the matcher then consumes the
 * one chosen by itself, before the future is ready.
 * Gives: a token, by `takeSample`.
 * Errors: as `sample`, and `busy`.
 */
export function sampleConstrained(queue: number, embed: number, sampler: number, matcher: number): number {
  try {
    return _grammar.sampleConstrained(asU32(queue), asU32(embed), asU32(sampler), asU32(matcher));
  } catch (error) {
    throw called(error);
  }
}
