// Device programs of JavaScript: texts, mistakes, and what they choose.
import { Context, device, Grammar, Model, Sampler } from "inferlet";

const guided = device.program("def f(x, s): return guidance(x, beside(0), s.scale).argmax()");
const told = device.program(`
  def told(logits, state):
      state.more += 1
      return state.token + state.more - 1
`);
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
// Whole numbers beyond 2^53 go there and come back as they are, beside floats of many digits.
const shifted = device.program(`
  def shifted(logits, state):
      state.x += 2
      state.y += state.x.to_float()
      state.table -= 1
      return logits.where(state.low < 0.0, inf).argmax()
`);
const all = device.attend(
  `
  def all(scores, state):
      state.kept = state.kept & (step() >= least)
      return (scores > -inf).transpose().any() | state.kept.any()
  `,
  { least: 0 },
);
const quest = (pages: number, full_layers: number) =>
  new device.Attend("quest", { pages, full_layers, together: false });
const h2o = new device.Attend(
  "h2o",
  { heavy: 6, recent: 4, together: false },
  { sums: device.perToken(0, { byHead: true }) },
);
const tova = new device.Attend("tova", { budget: 9 });
const policies: Record<string, device.Attend | undefined> = {
  whole: undefined,
  "all of a text": all({ kept: device.perToken(true) }),
  "all pages": quest(512, 0),
  "the same in the layers": device.layers("def same(residual): return residual", [0, -1], true)(),
  "nothing in a layer": device.layers("def none(residual): return residual * by", [1], true, { by: 0 })(),
  quest: quest(2, 1),
  sinks: new device.Attend("sinks", { first: 4, window: 12 }),
  h2o,
  snapkv: new device.Attend("snapkv", { budget: 5, window: 3, kernel: 7 }),
  tova,
};
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

/** Tokens of a program that is given other values meanwhile, and errors. */
async function put(): Promise<Record<string, unknown>> {
  const [token, more] = [10n, 0n];
  const context = new Context(Model.load()).fill("Once upon a time");
  const generation = context.generate(told({ token, more }), { maxTokens: 9, stop: [] });
  const early = mistake(() => generation.put({ token: 50n }));
  let [kind, name] = ["", ""];
  const tokens: number[] = [];
  for await (const each of generation.streamTokens()) {
    tokens.push(each);
    if (tokens.length === 3) generation.put({ token: 50n });
    if (tokens.length !== 6) continue;
    kind = mistake(() => generation.put({ token: 0.5 }));
    name = mistake(() => generation.put({ other: 1 }));
    generation.put({ token: 20n, more });
  }
  const state = await generation.state();
  const whole = [state.token, state.more].map(Number);
  return { tokens, state: whole, kind, name, early };
}

/** Tokens of two texts, of one that guidance takes wholly and of one that it leaves for the other. */
async function contextsBeside(): Promise<number[][]> {
  const found: number[][] = [];
  const options = { maxTokens: 6, stop: [] };
  for (const text of ["Once upon a time", "Rain. Once"]) {
    found.push(await new Context(Model.load()).fill(text).generate(undefined, options).collectTokens());
  }
  for (const scale of [1, 0]) {
    const beside = [new Context(Model.load()).fill("Rain. Once")];
    const context = new Context(Model.load()).fill("Once upon a time");
    found.push(await context.generate(guided({ scale }), { ...options, beside }).collectTokens());
  }
  return found;
}

/** Tokens by policy of what layers read. */
async function attending(): Promise<Record<string, number[]>> {
  const found: Record<string, number[]> = {};
  const prompt = "The quick brown fox jumps over the lazy dog, and runs on through the woods. ".repeat(2);
  for (const [name, attend] of Object.entries(policies)) {
    const context = new Context(Model.load()).fill(prompt);
    found[name] = await context.generate(undefined, { maxTokens: 24, stop: [], attend }).collectTokens();
  }
  return found;
}

/** Samplers and a rule of the program's own beside programs in the layers, and what these keep. */
async function inLayers(): Promise<Record<string, unknown>> {
  const begin = (rule?: device.ProgramSampler, more: object = {}) =>
    new Context(Model.load()).fill("The quick brown fox").generate(rule, { maxTokens: 8, stop: [], ...more });
  const all = (value: number): number[] => Array<number>(256).fill(value);
  const early = new device.Attend("early", {}, { early: [all(0), all(0)] }, [0, 1], "last");
  const given = { weights: [all(1)], bias: [0], scores: [0], sums: [0] };
  const attend = new device.Attend("probe", {}, given, [1], true);
  const scored = begin(undefined, { attend });
  const vector = { tensor: "nothing/vector" };
  const uploaded = new device.Attend("steer", { strength: 1 }, { vector }, [1]);
  return {
    plain: await begin().collectTokens(),
    probed: await scored.collectTokens(),
    chosen: await begin(undefined, { attend, choose: ([first]: number[]) => first }).collectTokens(),
    second: await begin(undefined, { attend, choose: (tokens: number[]) => tokens[1] }).collectTokens(),
    dola: await begin(device.named("dola")({ temperature: 0 }), { attend: early }).collectTokens(),
    sums: String((await scored.state()).sums),
    missing: await failure(() => begin(undefined, { attend: uploaded }).collectTokens()),
  };
}

/** Tokens by a policy, read in ways between which the server can't go on by itself. */
async function attendedWays(attend: device.Attend): Promise<Record<string, number[]>> {
  const begin = (sampler: Sampler, more: object = {}) =>
    new Context(Model.load())
      .fill("The quick brown fox jumps over the lazy dog, and runs on. ")
      .generate(sampler, { maxTokens: 10, stop: [], seed: 7, attend, ...more });
  // Within the grammar there are the same tokens for long, so that a sampler can have them.
  const grammar = Grammar.regex("[a-m ]{200}");
  const matcher = await grammar.matcher(Model.load());
  const ids = Array.from({ length: Model.load().vocabSize }, (_, id) => id);
  const allowedTokens = ids.filter((id) => matcher.allows(id));
  const warm = new Sampler({ temperature: 0.8, topP: 0.95, allowedTokens });
  const found: Record<string, number[]> = {
    run: await begin(warm).collectTokens(),
    steps: await begin(warm, { runAhead: false }).collectTokens(),
    grammar: await begin(Sampler.topP(0.8, 0.95), { grammar }).collectTokens(),
    logprobs: [],
    looks: [],
  };
  for (const name of ["logprobs", "looks"]) {
    const logprobs = name === "logprobs" ? 2 : 0;
    const generation = begin(new Sampler({ temperature: 0.8, topP: 0.95, allowedTokens, logprobs }));
    for await (const step of generation) {
      if (name === "looks" && generation.tokensGenerated % 3 !== 1) await step.distribution();
      found[name].push(...(await step.execute()).tokens);
    }
  }
  return found;
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
function refused(sampler: Sampler | device.ProgramSampler, attend?: device.Attend): Promise<string> {
  const context = new Context(Model.load()).fill("Once upon a time");
  return failure(() => context.generate(sampler, { maxTokens: 2, attend }).collectText());
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
  const first = context.generate(counting({ next: 0n }), { maxTokens: 5, stop: [] });
  const tokens = await first.collectTokens();
  const again = counting(await first.state());
  const more = await context.generate(again, { maxTokens: 3, stop: [] }).collectTokens();
  const plain = new Context(Model.load()).fill("Once upon a time");
  const huge = { x: 2n ** 53n + 1n, y: 0.1, table: [-(2n ** 63n) + 9n, 7n], low: -Infinity };
  const far = new Context(Model.load()).fill("Once").generate(shifted(huge), { maxTokens: 2, stop: [] });
  await far.collectTokens();
  const state = await far.state();
  const later = new Context(Model.load()).fill("Once").generate(shifted(state), { maxTokens: 1, stop: [] });
  await later.collectTokens();
  const shown = (value: unknown): string => (Array.isArray(value) ? value.map(shown).join(" ") : String(value));
  const states = [state, await later.state()].map((one) => [one.x, one.y, one.table, one.low].map(shown));
  const marked = new Context(Model.load()).fill("The weather today");
  const keyed = device.named("synthid")({ temperature: 1, key: 42n }, { seed: 4 });
  const watermarked = await marked.generate(keyed, { maxTokens: 160, stop: [] }).collectTokens();
  const guessed: number[][] = [];
  for (const speculate of [0, 8]) {
    const text = new Context(Model.load()).fill("one two three one two three one two");
    guessed.push(await text.generate(undefined, { maxTokens: 24, stop: [], speculate }).collectTokens());
  }
  const like: number[][] = [];
  for (const text of ["one two three four", ""]) {
    const tokens = Model.load().tokenizer.encode(text);
    const repeated = new Context(Model.load()).fill("one two three one two three one two");
    const options = { maxTokens: 24, stop: [], speculate: 8, like: tokens };
    like.push(await repeated.generate(undefined, options).collectTokens());
  }
  const improved = new Context(Model.load()).fill("one two three one two three one two");
  const jacobi = { maxTokens: 24, stop: [], speculate: 8, drafter: "jacobi" } as const;
  guessed.push(await improved.generate(undefined, jacobi).collectTokens());
  const speculation = [
    mistake(() => plain.generate(undefined, { speculate: 17 })),
    mistake(() => plain.generate(undefined, { drafter: "jacobi" })),
  ];
  const attend = tova;
  const found: Record<string, string> = {};
  for (const [name, [text, given]] of Object.entries(mistakes)) {
    found[name] = await refused(device.program(text)(given));
  }
  found.field = await refused(new Sampler({ temprature: 1 } as object));
  found.range = await refused(Sampler.topP(-1));
  const wrong = ["def f(scores):", "return iota(HEADS) >= 0"].join(" "); // as a literal it would not be built
  found.kept = await refused(Sampler.argmax(), device.attend(wrong)());
  const reads = device.program("def f(logits): return beside(0).argmax()")();
  for (let i = 0; i < 70; i++) found.alone = await refused(reads); // more than may be open at once
  found.accept = await failure(async () => {
    const generation = plain.generate(undefined, { attend, maxTokens: 3 });
    for await (const step of generation) generation.accept((await step.distribution(1)).tokens);
  });
  const mirostat = device.named("mirostat")({ mu: 10, tau: 5, rate: 0.1 }, { seed: 3 });
  return JSON.stringify({
    tokens,
    more,
    states,
    ways: [await ways(everyStep), await ways(mirostat), await ways(Sampler.topP(1, 0.9, 7, { topK: 30 }))],
    watermarked,
    guessed,
    speculation,
    like,
    put: await put(),
    beside: await contextsBeside(),
    attended: await attending(),
    inLayers: await inLayers(),
    attendedWays: [await attendedWays(h2o), await attendedWays(quest(2, 1))],
    mistakes: found,
  });
}
