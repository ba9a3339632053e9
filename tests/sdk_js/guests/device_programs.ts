// Device programs of JavaScript: their texts, mistakes, and what they choose.
import { Context, device, Model, samplers, watermark } from "inferlet";

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
const given = { k: 5n, p: 0.5, tokens: device.int([3, 4]), values: [1, -1] };
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
  banned_sequences: (logits) => samplers.bannedSequences(logits, [[5], [1, 2, 3]]),
  dry: (logits) => samplers.dry(logits, 0.8, 1.75, 2, [13, 198], 64),
  watermark: (logits) => samplers.watermark(logits, 2, 0.5, 7),
  logit_bias: (logits, state) => samplers.logitBias(logits, state.tokens, state.values),
  allowed_tokens: (logits, state) => samplers.allowedTokens(logits, state.tokens),
  min_tokens: (logits, state) => samplers.minTokens(logits, 4, state.tokens),
  healed: (logits, state) => samplers.healed(logits, state.tokens),
};
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

export async function main(): Promise<string> {
  const texts: Record<string, string> = {
    tempered: tempered({ temperature: 0.7, p: 0.9 }).text,
    mirostat: samplers.mirostat({ mu: 10, tau: 5, rate: 0.1 }).text,
    entropy_temperature: samplers.entropyTemperature({ temperature: 1, theta: 1 }).text,
    gumbel_watermark: samplers.gumbelWatermark({ temperature: 1, key: 42n }).text,
    synthid: samplers.synthid({ temperature: 1, key: 42n }).text,
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
  const refused = mistake(() => plain.generate(undefined, { speculate: 17 }));
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
  });
}
