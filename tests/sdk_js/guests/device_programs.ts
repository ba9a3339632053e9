// Device programs of JavaScript: texts, mistakes, and what they choose.
import { Context, device, Model, Sampler } from "inferlet";

const counting = device.program(
  `
  def after(state):
      state.next += least
      return state.next

  def counting(logits, state):
      return after(state) + offsets["first"][0]
  `,
  { least: 1, offsets: { first: [9n] }, aside: [0.5, true, "text", null] },
);
// A whole number beyond 2^53 goes there as it is, beside floats.
const shifted = device.program(
  "def f(x, s): return (s.x - 9007199254740983) * (s.low < 0.0).to_int() + s.table.sum() * (s.y < 0.05).to_int()",
);
const mistakes: Record<string, [string, device.State]> = {
  kinds: ["\n  def f(logits):\n      return (logits +  step()).argmax()", {}],
  given: ["def f(logits, state): return state.x", { x: [] }],
  nan: ["def f(logits, state): return draw(logits * state.x)", { x: NaN }],
};

function mistake(make: () => unknown): string {
  try {
    make();
  } catch (error) {
    return `${(error as Error).name}: ${(error as Error).message}`;
  }
  return "none";
}

async function failure(make: () => Promise<unknown>): Promise<string> {
  try {
    await make();
  } catch (error) {
    return `${(error as Error).name}: ${(error as Error).message}`;
  }
  return "none";
}

/** Tokens of a sampler, read as a text, as tokens, and by steps. */
async function ways(sampler: Sampler | device.ProgramSampler): Promise<number[][]> {
  const context = () => new Context(Model.load()).fill("Once upon a time");
  const options = { maxTokens: 8, stop: [] };
  const whole = context();
  const before = whole.length;
  await whole.generate(sampler, options).collectText();
  const found = [whole.tokens.slice(before), await context().generate(sampler, options).collectTokens(), []];
  for await (const step of context().generate(sampler, options)) {
    found[2].push(...(await step.execute()).tokens);
  }
  return found;
}

/** What one generation is refused for. */
function refused(sampler: Sampler | device.ProgramSampler): Promise<string> {
  const context = new Context(Model.load()).fill("Once upon a time");
  return failure(() => context.generate(sampler, { maxTokens: 2 }).collectText());
}

const everyStep = new Sampler({
  logitBias: { 3: 1, 4: null, 5: -Infinity },
  repetitionPenalty: 1.5,
  presencePenalty: 0.5,
  frequencyPenalty: 0.5,
  noRepeatNgramSize: 3,
  bannedSequences: [[5], [1, 2, 3]],
  minTokens: 3,
  endTokens: [1],
  dryMultiplier: 0.5,
  drySequenceBreakers: [4],
  temperature: 0.5,
  topK: 20,
  topP: 0.9,
  minP: 0.01,
  typicalP: 0.9,
  epsilonCutoff: 1e-4,
  etaCutoff: 1e-4,
  xtcProbability: 0.5,
  seed: 2n ** 64n + 5n,
});

export async function main(): Promise<string> {
  const context = new Context(Model.load()).fill("Once upon a time");
  const tokens = await context.generate(counting({ next: 0n }), { maxTokens: 5, stop: [] }).collectTokens();
  const plain = new Context(Model.load()).fill("Once upon a time");
  const huge = { x: 2n ** 53n + 1n, y: 0.1, table: [-(2n ** 63n) + 9n, 7n], low: -Infinity };
  const far = new Context(Model.load()).fill("Once").generate(shifted(huge), { maxTokens: 1, stop: [] });
  const exact = await far.collectTokens();
  const marked = new Context(Model.load()).fill("The weather today");
  const keyed = device.named("synthid")({ temperature: 1, key: 42n }, { seed: 4 });
  const watermarked = await marked.generate(keyed, { maxTokens: 160, stop: [] }).collectTokens();
  const guessed: number[][] = [];
  for (const speculate of [0, 8]) {
    const text = new Context(Model.load()).fill("one two three one two three one two");
    guessed.push(await text.generate(undefined, { maxTokens: 24, stop: [], speculate }).collectTokens());
  }
  const speculation = mistake(() => plain.generate(undefined, { speculate: 17 }));
  const found: Record<string, string> = {};
  for (const [name, [text, given]] of Object.entries(mistakes)) {
    found[name] = await refused(device.program(text)(given));
  }
  found.field = await refused(new Sampler({ temprature: 1 } as object));
  found.range = await refused(Sampler.topP(-1));
  const steered = device.program("def f(logits, state): return (logits + state.x.sum()).argmax()");
  found.missing = await refused(steered({ x: { tensor: "nothing/vector" } }));
  const mirostat = device.named("mirostat")({ mu: 10, tau: 5, rate: 0.1 }, { seed: 3 });
  return JSON.stringify({
    tokens,
    exact,
    ways: [await ways(everyStep), await ways(mirostat), await ways(Sampler.topP(1, 0.9, 7, { topK: 30 }))],
    watermarked,
    guessed,
    speculation,
    mistakes: found,
  });
}
