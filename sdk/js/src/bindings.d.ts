// Generated from sdk/wit/inferlet.wit by `python -m codegen`; do not edit.

// The contract's interfaces as the component's bindings offer them: they exist only in the server.

declare module "pie:inferlet/runtime@0.1.0" {
  export function getArg(): unknown;
  export function instanceId(): string;
  export function user(): string;
  export function version(): string;
  export function availableModels(): unknown;
  export function availableTraits(model: string): unknown;
  export function modelInfo(model: string): string;
  export function createQueue(model: string): number;
  export function destroyQueue(queue: number): void;
  export function synchronize(queue: number): number;
  export function setQueuePriority(queue: number, priority: number): void;
  export function wait(futures: Uint32Array): unknown;
  export function take(future: number): void;
  export function takeText(future: number): string;
  export function takeTexts(future: number): unknown;
  export function takeBlob(future: number): unknown;
  export function cancel(future: number): void;
  export function now(): bigint;
  export function monotonicNow(): bigint;
  export function sleep(nanoseconds: bigint): number;
  export function randomBytes(count: number): unknown;
  export function log(level: "debug" | "info" | "warning" | "error", message: string): void;
  export function launch(program: string, args: string[]): number;
}

declare module "pie:inferlet/session@0.1.0" {
  export function send(message: string): void;
  export function sendBlob(data: Uint8Array): void;
  export function writable(): number;
  export function receive(): number;
  export function receiveBlob(): number;
}

declare module "pie:inferlet/http@0.1.0" {
  export function httpGet(url: string, headers: [string, string][]): number;
  export function httpPost(url: string, headers: [string, string][], body: Uint8Array): number;
  export function httpRequest(method: string, url: string, headers: [string, string][], body: Uint8Array, timeoutMs: number): number;
  export function takeResponse(future: number): unknown;
  export function readBody(body: number, most: number): number;
  export function responseUrl(body: number): string;
  export function closeBody(body: number): void;
}

declare module "pie:inferlet/mcp@0.1.0" {
  export function mcpServers(): unknown;
  export function mcpListTools(server: string): number;
  export function mcpCallTool(server: string, tool: string, arguments_: string): number;
}

declare module "pie:inferlet/messaging@0.1.0" {
  export function broadcast(topic: string, message: string): number;
  export function broadcastRoom(topic: string): number;
  export function subscribe(topic: string): number;
  export function unsubscribe(subscription: number): void;
  export function nextMessage(subscription: number): number;
  export function push(topic: string, message: string): void;
  export function pushRoom(topic: string): number;
  export function pull(topic: string): number;
}

declare module "pie:inferlet/store@0.1.0" {
  export function storeGet(key: string): number;
  export function storeSet(key: string, value: Uint8Array): number;
  export function storeDelete(key: string): number;
  export function storeList(prefix: string, after: string, limit: number): number;
  export function storeRoom(): number;
  export function storeCommit(expected: [string, Uint8Array][], absent: string[], writes: [string, Uint8Array][], deletes: string[]): number;
}

declare module "pie:inferlet/allocate@0.1.0" {
  export function allocKvpage(queue: number, count: number): number;
  export function deallocKvpage(queue: number, pages: Uint32Array): void;
  export function exportKvpage(queue: number, pages: Uint32Array, name: string, shared: boolean): void;
  export function importKvpage(queue: number, name: string): unknown;
  export function listExports(queue: number): unknown;
  export function releaseExport(queue: number, name: string): void;
  export function expireExport(queue: number, name: string, nanoseconds: bigint): void;
  export function retainKvpage(queue: number, pages: Uint32Array, priority: number, nanoseconds: bigint): void;
  export function copyKvpage(queue: number, sourcePage: number, sourceSlot: number, targetPage: number, targetSlot: number, count: number): void;
  export function kvpageUsed(queue: number, pages: Uint32Array): unknown;
  export function truncateKvpage(queue: number, pages: Uint32Array, used: Uint32Array): void;
  export function allocEmb(queue: number, count: number): number;
  export function deallocEmb(queue: number, embeds: Uint32Array): void;
  export function copyEmb(queue: number, sources: Uint32Array, targets: Uint32Array, positions: Uint32Array): void;
  export function poolStats(queue: number): string;
}

declare module "pie:inferlet/forward@0.1.0" {
  export function forward(queue: number, inputPages: Uint32Array, inputEmbeds: Uint32Array, outputPages: Uint32Array, outputEmbeds: Uint32Array, mask: Uint32Array): void;
  export function maskKvpage(queue: number, pages: Uint32Array, masks: Uint32Array): void;
  export function shiftKvpage(queue: number, pages: Uint32Array, distance: number): void;
}

declare module "pie:inferlet/adapter@0.1.0" {
  export function availableAdapters(model: string): unknown;
  export function forwardWithAdapter(queue: number, adapter: string, inputPages: Uint32Array, inputEmbeds: Uint32Array, outputPages: Uint32Array, outputEmbeds: Uint32Array, mask: Uint32Array): void;
}

declare module "pie:inferlet/introspect@0.1.0" {
  export function forwardWithAttention(queue: number, inputPages: Uint32Array, inputEmbeds: Uint32Array, outputPages: Uint32Array, outputEmbeds: Uint32Array, mask: Uint32Array, observed: number, detail: "total" | "layers" | "heads", adapter: string): number;
  export function takeAttention(future: number): unknown;
}

declare module "pie:inferlet/offload@0.1.0" {
  export function swapOut(queue: number, pages: Uint32Array): void;
  export function swapIn(queue: number, pages: Uint32Array): void;
  export function discard(queue: number, pages: Uint32Array): void;
  export function kvCosts(model: string): string;
  export function advise(queue: number, pages: Uint32Array, wait: string): string;
  export function noteWait(tool: string, nanoseconds: bigint): void;
}

declare module "pie:inferlet/prefix-cache@0.1.0" {
  export function matchPrefix(queue: number, adapter: string, tokens: Uint32Array): unknown;
  export function insertPrefix(queue: number, pages: Uint32Array): number;
}

declare module "pie:inferlet/input-text@0.1.0" {
  export function embedTxt(queue: number, tokens: Uint32Array, positions: Uint32Array, embeds: Uint32Array): void;
}

declare module "pie:inferlet/input-image@0.1.0" {
  export function numEmbsNeeded(model: string, width: number, height: number): number;
  export function numPositionsNeeded(model: string, width: number, height: number): number;
  export function imageSize(image: Uint8Array): unknown;
  export function embedImg(queue: number, image: Uint8Array, positions: Uint32Array, embeds: Uint32Array): void;
}

declare module "pie:inferlet/tokenize@0.1.0" {
  export function tokenize(model: string, text: string): unknown;
  export function detokenize(model: string, tokens: Uint32Array): string;
  export function getVocabs(model: string): unknown;
  export function specialTokens(model: string): unknown;
  export function applyChatTemplate(model: string, messages: string, addGenerationPrompt: boolean): string;
}

declare module "pie:inferlet/output-text@0.1.0" {
  export function getNextDist(queue: number, embed: number, k: number): number;
  export function takeDist(future: number): unknown;
  export function getHidden(queue: number, embeds: Uint32Array): number;
  export function takeHidden(future: number): unknown;
}

declare module "pie:inferlet/sample@0.1.0" {
  export function createSampler(queue: number, parameters: string): number;
  export function samplerFacts(queue: number, sampler: number): string;
  export function destroySampler(queue: number, sampler: number): void;
  export function feedSampler(queue: number, sampler: number, tokens: Uint32Array, generated: boolean): void;
  export function readState(queue: number, sampler: number): number;
  export function writeState(queue: number, sampler: number, state: string): void;
  export function mixLogits(queue: number, embed: number, samplerQueue: number, sampler: number): void;
  export function sample(queue: number, embed: number, sampler: number): number;
  export function sampleMasked(queue: number, embed: number, sampler: number, mask: Uint32Array): number;
  export function takeSample(future: number): unknown;
  export function embedSampled(queue: number, sampler: number, position: number, embed: number): void;
  export function step(queue: number, sampler: number, position: number, embed: number, inputPages: Uint32Array, outputPage: number, adapter: string): number;
  export function startRun(queue: number, sampler: number, embed: number, position: number, ownEmbed: number, inputPages: Uint32Array, outputPages: Uint32Array, adapter: string, most: number, stops: Uint32Array): number;
  export function speculate(queue: number, run: number, text: Uint32Array, most: number): void;
  export function speculateWith(queue: number, run: number, draftQueue: number, draftRun: number, most: number): void;
  export function runProgress(queue: number, run: number, count: number): number;
  export function takeTokens(queue: number, run: number): unknown;
  export function nextTokens(queue: number, run: number, count: number): unknown;
  export function runText(queue: number, run: number, before: Uint32Array, ends: string[], hidden: Uint32Array, toClient: boolean): number;
  export function takeRunText(future: number): unknown;
  export function endRun(queue: number, run: number, count: number): unknown;
}

declare module "pie:inferlet/grammar@0.1.0" {
  export function compileGrammar(model: string, kind: string, text: string): number;
  export function takeGrammar(future: number): number;
  export function releaseGrammar(grammar: number): void;
  export function createMatcher(grammar: number): number;
  export function destroyMatcher(matcher: number): void;
  export function advance(matcher: number, tokens: Uint32Array): boolean;
  export function rollback(matcher: number, count: number): void;
  export function countAllowed(matcher: number, tokens: Uint32Array): number;
  export function isAccepting(matcher: number): boolean;
  export function isFinished(matcher: number): boolean;
  export function grammarMask(matcher: number): unknown;
  export function grammarForced(matcher: number): unknown;
  export function sampleConstrained(queue: number, embed: number, sampler: number, matcher: number): number;
}

declare module "pie:inferlet/source@0.1.0" {
  export function isEarly(): boolean;
  export function read(): unknown;
  export function keep(code: string): void;
}
