// Device programs of JavaScript: their texts, mistakes, and what they choose.
import { attention, Context, device, DeviceSampler, Grammar, Model, samplers, watermark } from "inferlet";

const LN2 = Math.LN2;
type Rule = (logits: device.Tensor, state: device.State) => device.Tensor;
const rules: Record<string, [Rule, Record<string, device.Given>]> = {
  greedy: [(logits) => logits.argmax(), {}],
  penalized: [
    (logits) => {
      const less = device.where(logits.gt(0), logits.div(1.2), logits.mul(1.2));
      return less.where(device.counts().gt(0).or(device.given()), logits).argmax();
    },
    {},
  ],
  green: [
    (logits, state) => {
      const before = device.newest(1).at(0);
      const first = device.hash(state.key, before);
      const drawn = device.hash(first, device.iota()).shr(40).and(0xffffff);
      return device.draw(logits.add(drawn.toFloat().lt(0.5 * 2 ** 24).toFloat().mul(2)));
    },
    { key: device.int(42) },
  ],
  surprised: [
    (logits, state) => {
      const surprise = logits.logSoftmax().neg().div(LN2);
      const token = device.draw(logits.where(surprise.le(state.mu), -Infinity));
      state.mu = state.mu.sub(surprise.at(token).sub(5).mul(0.1));
      return token;
    },
    { mu: 10 },
  ],
  shapes: [
    (logits, state) => {
      const top = logits.top(8);
      const mean = logits.at(top).reshape(2, 4).transpose().sum().mean();
      const folded = device.fold((a, x) => a.add(x), mean, state.table.slice(1, -1));
      return device.where(folded.ne(0).not(), top.at(-1), device.step().mod(3));
    },
    { table: [0.5, 1, 2, -1] },
  ],
  operators: [
    (logits, state) => {
      const { flags, table } = state;
      const joined = device.concat(state.x.flip(), state.x.abs()).sort().slice(0, 6);
      let x = joined.pow(0.5).mul(state.x.min());
      x = x.sqrt().tanh().add(x.sigmoid().floor()).sub(x.exp().log()).div(device.maximum(x, 0.25));
      const n = state.n.floordiv(3).or(5).xor(state.n.not()).shl(2);
      const some = flags.any().xor(flags.all().and(n.ne(7).any()));
      const random = device.random(n, 1).sum().add(device.uniform(2));
      const chance = random.sub(device.exponential(3, 1));
      const matrix = device.matvec(table, x.slice(0, 3));
      const places = device.oneHot(n.at(0), 6).toInt().add(flags.toBool().toInt());
      const added = x.scatterAdd(places, chance).isNan().toInt().sum();
      state.n = n.scatterMax(n.argsort(), 9);
      const rows = table.at(1).cumsum().argmax().add(matrix.argmax());
      return device.where(some, added.add(rows), logits.descending().at(0));
    },
    {
      x: [0.5, 1, 2, -1],
      n: device.int([1, 2, 3]),
      flags: [true, false, true, false, true, false],
      table: [[1, 2, 3], [4, 5, 6]],
    },
  ],
};
const everyStep = new DeviceSampler({
  logitBias: { 3: 1, 4: null },
  allowedTokens: [1, 2],
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
  topP: 0.5,
  minP: 0.25,
  typicalP: 0.5,
  epsilonCutoff: 0.25,
  etaCutoff: 0.25,
  xtcProbability: 0.5,
});
const given = {
  k: 5n,
  p: 0.5,
  tokens: device.int([3, 4]),
  values: [1, -1],
  sequences: samplers.padded([[5], [1, 2, 3]]),
};
const filters: Record<string, Rule> = {
  top_k: (logits) => samplers.topK(logits, 40),
  "top_k of state": (logits, state) => samplers.topK(logits, state.k),
  top_p: (logits) => samplers.topP(logits, 0.9),
  min_p: (logits) => samplers.minP(logits, 0.05),
  "min_p of state": (logits, state) => samplers.minP(logits, state.p),
  top_a: (logits) => samplers.topA(logits, 0.2),
  epsilon_cutoff: (logits) => samplers.epsilonCutoff(logits, 3e-4),
  eta_cutoff: (logits) => samplers.etaCutoff(logits, 3e-4),
  "eta_cutoff of state": (logits, state) => samplers.etaCutoff(logits, state.p),
  typical_p: (logits) => samplers.typicalP(logits, 0.95),
  tail_free: (logits) => samplers.tailFree(logits, 0.95),
  xtc: (logits) => samplers.xtc(logits, 0.1, 0.5),
  repetition_penalty: (logits) => samplers.repetitionPenalty(logits, 1.2),
  presence_penalty: (logits) => samplers.presencePenalty(logits, 0.5),
  frequency_penalty: (logits) => samplers.frequencyPenalty(logits, 0.5),
  no_repeat_ngram: (logits) => samplers.noRepeatNgram(logits, 3),
  banned_sequences: (logits, state) => samplers.bannedSequences(logits, state.sequences),
  dry: (logits, state) => samplers.dry(logits, 0.8, 1.75, 2, state.tokens, 64),
  watermark: (logits) => samplers.watermark(logits, 2, 0.5, 7),
  logit_bias: (logits, state) => samplers.logitBias(logits, state.tokens, state.values),
  allowed_tokens: (logits, state) => samplers.allowedTokens(logits, state.tokens),
  min_tokens: (logits, state) => samplers.minTokens(logits, 4, state.tokens),
  healed: (logits, state) => samplers.healed(logits, state.tokens),
  guidance: (logits) => samplers.guidance(logits, device.beside(0), 3),
  "guidance of state": (logits, state) => samplers.guidance(logits, device.beside(1), state.p),
  contrastive: (logits) => samplers.contrastive(logits, device.beside(0)),
  context_aware: (logits) => samplers.contextAware(logits, device.beside(0), 0.5),
  "context_aware of state": (logits, state) => samplers.contextAware(logits, device.beside(0), state.p),
  with_at: (logits, state) => logits.withAt(state.k, state.p).withAt(7, 0),
};
const own = device.attend(({ scores, state }) => {
  const kept = device.shared(scores).max().gt(device.iota(device.HEADS).toFloat().mul(state.share));
  state.reached = state.reached.and(device.step().lt(device.layer()));
  const pages = device.iota(device.PAGES);
  return pages.eq(device.tokens().floordiv(16)).or(kept.any().and(pages.mod(2).eq(0)));
});
const attended: Record<string, device.Attend> = {
  sinks: attention.sinks(),
  "sinks of": attention.sinks(0, 64),
  quest: attention.quest(8),
  tova: attention.tova(256),
  h2o: attention.h2o(32, 64),
  "h2o together": attention.h2o(32, 64, { together: true }),
  snapkv: attention.snapkv(128),
  own: own({ share: 0.5, reached: device.perToken(true) }),
};
const policies: Record<string, device.Attend | undefined> = {
  whole: undefined,
  "all pages": attention.quest(512, 0),
  quest: attention.quest(2, 1),
  sinks: attention.sinks(4, 12),
  h2o: attention.h2o(6, 4),
  snapkv: attention.snapkv(5, 3),
  tova: attention.tova(9),
};
const guided = device.program((logits, state) =>
  samplers.guidance(logits, device.beside(0), state.scale).argmax(),
);
const told = device.program((_, state) => {
  state.more = state.more.add(1);
  return state.token.add(state.more).sub(1);
});
const tempered = samplers.tempered;
const counting = device.program((logits, state) => {
  state.next = state.next.add(1);
  return state.next.add(9);
});

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
  const [token, more] = [device.int(10), device.int(0)];
  const context = new Context(Model.load()).fill("Once upon a time");
  const generation = context.generate(told({ token, more }), { maxTokens: 9, stop: [] });
  const early = mistake(() => generation.put({ token: 50n }));
  let [kind, name] = ["", ""];
  const tokens: number[] = [];
  for await (const each of generation.streamTokens()) {
    tokens.push(each);
    if (tokens.length === 3) generation.put({ token: device.int(50) });
    if (tokens.length !== 6) continue;
    kind = mistake(() => generation.put({ token: 0.5 }));
    name = mistake(() => generation.put({ other: 1 }));
    generation.put({ token: device.int(20), more });
  }
  const state = await generation.state();
  const whole = [state.token, state.more].map((one) => Number((one as device.WholeNumber).value));
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

export async function main(): Promise<string> {
  const texts: Record<string, string> = {
    tempered: tempered({ temperature: 0.7, p: 0.9 }).text,
    mirostat: samplers.mirostat({ mu: 10, tau: 5, rate: 0.1 }).text,
    entropy_temperature: samplers.entropyTemperature({ temperature: 1, theta: 1 }).text,
    gumbel_watermark: samplers.gumbelWatermark({ temperature: 1, key: 42n }).text,
    synthid: samplers.synthid({ temperature: 1, key: 42n }).text,
    "device sampler": (everyStep.resolved() as device.ProgramSampler).text,
  };
  for (const [name, [rule, values]] of Object.entries(rules)) {
    texts[name] = device.program(rule)(values).text;
  }
  for (const [name, rule] of Object.entries(filters)) {
    const drawn = device.program((logits, state) => device.draw(rule(logits, state)));
    texts[name] = drawn(given).text;
  }
  const mistakes = [
    mistake(() => device.program((logits) => logits.add(device.newest(5).toFloat()).argmax())()),
    mistake(() => device.program((logits) => logits.add(device.step()).argmax())()),
    mistake(() => device.program((logits, state) => state.y as device.Tensor)({ x: 1 })),
    mistake(() => device.program((logits) => (Number(logits) + 1, logits.argmax()))()),
    mistake(() => device.program((logits) => logits)()),
    mistake(() => device.iota()),
    mistake(() => device.program((logits) => device.draw(logits.sub(logits.mean())))()),
    mistake(() => device.program((logits) => logits.at(-1).toInt())()),
    mistake(() => device.program((logits) => device.draw(logits.max()))()),
    mistake(() => device.int(2 ** 53)),
    mistake(() => device.int(2n ** 63n)),
    mistake(() => device.attend(({ scores }) => (scores.max(), device.iota(device.TOKENS).ge(0)))()),
    mistake(() => device.attend(({ weights }) => weights.slice(1))()),
    mistake(() => device.program(() => device.beside(2).argmax())()),
    mistake(() => counting({ next: 1n, more: 1 }).givenAgain({ more: 1n })),
  ];
  const context = new Context(Model.load()).fill("Once upon a time");
  const first = context.generate(counting({ next: device.int(0) }), { maxTokens: 5, stop: [] });
  const tokens = await first.collectTokens();
  const again = counting(await first.state());
  const more = await context.generate(again, { maxTokens: 3, stop: [] }).collectTokens();
  const plain = new Context(Model.load()).fill("Once upon a time");
  const drawn = plain.generate(tempered({ temperature: 0.7, p: 0.9 }, { seed: 3 }), { maxTokens: 8 });
  // Whole numbers beyond 2^53 go there and come back as they are, beside floats of many digits.
  const shifted = device.program((logits, state) => {
    state.x = state.x.add(2);
    state.y = state.y.add(state.x.toFloat());
    state.table = state.table.sub(1);
    return logits.argmax();
  });
  const huge = { x: 2n ** 53n + 1n, y: 0.1, table: device.int([-(2n ** 63n) + 9n, 7]), low: -Infinity };
  const far = new Context(Model.load()).fill("Once").generate(shifted(huge), { maxTokens: 2, stop: [] });
  await far.collectTokens();
  const state = await far.state();
  const later = new Context(Model.load()).fill("Once").generate(shifted(state), { maxTokens: 1, stop: [] });
  await later.collectTokens();
  const shown = (value: unknown): string => {
    if (Array.isArray(value)) return value.map(shown).join(" ");
    return String(value instanceof device.WholeNumber ? value.value : value);
  };
  const states = [state, await later.state()].map((one) => [one.x, one.y, one.table, one.low].map(shown));
  const marked = new Context(Model.load()).fill("The weather today");
  const keyed = samplers.synthid({ temperature: 1, key: 42n }, { seed: 4 });
  const watermarked = await marked.generate(keyed, { maxTokens: 24, stop: [] }).collectTokens();
  const scores = [42, 43].map((key) => watermark.synthidScore(watermarked, { key }));
  const shares = [42, 43].map((key) => watermark.gumbelScore(watermarked, { key }));
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
  const small = new Context(Model.load());
  const large = new Context(Model.load()).fill("one two three one two three one two");
  const drafting = { maxTokens: 12, stop: [], speculate: 4, drafter: small };
  const drafted = await large.generate(undefined, drafting).collectTokens();
  guessed.push([...drafted, ...(await large.generate(undefined, drafting).collectTokens())]);
  const refused = [
    mistake(() => plain.generate(undefined, { speculate: 17 })),
    mistake(() => plain.generate(undefined, { drafter: "jacobi" })),
  ];
  const attendTexts = Object.entries(attended).map(([name, one]) => [name, one.text]);
  const attend = attention.tova(9);
  const attendRefused = [
    mistake(() => plain.generate(undefined, { attend, grammar: Grammar.json() })),
    await failure(async () => {
      for await (const step of plain.generate(undefined, { attend, maxTokens: 3 })) await step.execute();
    }),
  ];
  return JSON.stringify({
    texts,
    mistakes,
    tokens,
    more,
    drawn: await drawn.collectTokens(),
    states,
    watermarked,
    scores,
    shares,
    guessed,
    refused,
    like,
    put: await put(),
    beside: await contextsBeside(),
    alone: mistake(() => plain.generate(device.program(() => device.beside(0).argmax())())),
    attended: await attending(),
    attendTexts: Object.fromEntries(attendTexts),
    attendRefused,
  });
}
