// The inferlet that the benchmarks launch as a TypeScript source: `bench.py` beside it does the same,
// and says what the arguments are.

import { Context, type Generator, Model, raw, runtime, Sampler, session } from "inferlet";

export async function main([mode, first, tokens, ...options]: string[]): Promise<unknown> {
  switch (mode) {
    case "launch": // the paper's: acknowledge, then complete (section 7)
      session.send("launched");
      await complete(first, Number(tokens), options);
      return "";
    case "complete":
      return complete(first, Number(tokens), options);
    case "decode":
      return decode(first, Number(tokens), options);
    case "stream":
      return stream(first, Number(tokens), options);
    case "prefill":
      return prefill(Number(first));
    case "calls":
      return calls(Number(first));
    case "idle":
      return runtime.sleep(Number(first));
  }
}

/** Continues a context greedily, whatever the model's stop tokens. */
function continued(context: Context, maxTokens: number, options: string[]): Generator {
  const runAhead = !options.includes("step-by-step");
  return context.generate(Sampler.argmax(), { maxTokens, stop: [], runAhead });
}

/** A context that holds token ids, given as JSON. */
function prompted(prompt: string): Context {
  return new Context(Model.load()).append(JSON.parse(prompt));
}

function nanoseconds(): number {
  return Number(raw.monotonicNow());
}

async function times(generator: Generator): Promise<number[]> {
  const found: number[] = [];
  for await (const _ of generator.streamTokens()) found.push(nanoseconds());
  return found;
}

/** When each token had been chosen from its distribution, ns. */
async function look(generator: Generator): Promise<number[]> {
  const found: number[] = [];
  for await (const step of generator) {
    generator.accept([(await step.distribution()).maxIndex()]);
    found.push(nanoseconds());
  }
  return found;
}

/** When each token came, ns. */
function complete(prompt: string, tokens: number, options: string[]): Promise<number[]> {
  return times(continued(prompted(prompt), tokens, options));
}

/** As `complete`, but begins to decode at the time that the client tells. */
async function decode(prompt: string, tokens: number, options: string[]): Promise<number[]> {
  const context = prompted(prompt);
  await told(context);
  const generator = continued(context, tokens, options);
  if (options.includes("looking")) return look(generator);
  if (!options.includes("at-once")) return times(generator);
  const begin = nanoseconds();
  await generator.collectTokens();
  return [begin, nanoseconds()];
}

/** As `decode`, and sends the text to the client. */
async function stream(prompt: string, tokens: number, options: string[]): Promise<void> {
  const context = prompted(prompt);
  await told(context);
  const generator = continued(context, tokens, options);
  if (!options.includes("by-program")) {
    await generator.sendText();
    return;
  }
  for await (const text of generator.streamText()) session.send(text);
}

/** Runs the prompt, and waits until the time that the client tells. */
async function told(context: Context): Promise<void> {
  await context.flush(); // and no token yet: the server would run ahead meanwhile
  session.send("ready");
  const start = Number(await session.receive());
  await runtime.sleep(Math.max(0, start - nanoseconds()) / 1e9);
}

/** Runs a random prompt through the model; how long that took, ms. */
async function prefill(length: number): Promise<number> {
  const start = performance.now();
  const tokens = Array.from({ length }, () => 16 + Math.floor(Math.random() * 240));
  await new Context(Model.load()).append(tokens).flush();
  return performance.now() - start;
}

/** Median nanoseconds of calls that the control layer answers, over blocks of 100. */
function calls(count: number): Record<string, number> {
  const queue = raw.createQueue(raw.availableModels()[0]);
  const page = raw.allocKvpage(queue, 1);
  const measured: Record<string, () => unknown> = {
    "monotonic-now": raw.monotonicNow,
    "instance-id": raw.instanceId,
    "kvpage-used": () => raw.kvpageUsed(queue, [page, 1]),
    "pool-stats": () => raw.poolStats(queue),
  };
  const medians = Object.entries(measured).map(([name, call]) => [name, medianNs(call, count)]);
  return Object.fromEntries(medians);
}

/** Median over blocks of the mean nanoseconds of a call within the block. */
function medianNs(call: () => unknown, count: number): number {
  const blocks: number[] = [];
  for (let block = 0; block < Math.max(1, Math.floor(count / 100)); block++) {
    const start = nanoseconds();
    for (let i = 0; i < 100; i++) call();
    blocks.push((nanoseconds() - start) / 100);
  }
  return blocks.sort((a, b) => a - b)[blocks.length >> 1];
}
