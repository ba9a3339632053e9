// Device programs of JavaScript: their texts, mistakes, and what they choose.
import { Context, device, Model } from "inferlet";

const greedy = device.program((logits) => logits.argmax());
const tempered = device.program((logits, state) =>
  device.draw(logits.div(state.temperature).where(device.nucleus(logits, state.p), -Infinity)),
);
const mirostat = device.program((logits, state) => {
  const surprise = logits.logSoftmax().neg().div(Math.LN2);
  const token = device.draw(logits.where(surprise.le(state.mu), -Infinity));
  state.mu = state.mu.sub(surprise.at(token).sub(5).mul(0.1));
  return token;
});
const penalized = device.program((logits) => {
  const less = device.where(logits.gt(0), logits.div(1.2), logits.mul(1.2));
  return less.where(device.counts().gt(0).or(device.given()), logits).argmax();
});
const green = device.program((logits, state) => {
  const before = device.newest(1).at(0);
  const drawn = device.hash(device.hash(state.key, before), device.iota()).shr(40).and(0xffffff);
  return device.draw(logits.add(drawn.toFloat().lt(0.5 * 2 ** 24).toFloat().mul(2)));
});
const shapes = device.program((logits, state) => {
  const top = logits.top(8);
  const mean = logits.at(top).reshape(2, 4).transpose().sum().mean();
  const folded = device.fold((a, x) => a.add(x), mean, state.table.slice(1, -1));
  return device.where(folded.ne(0).not(), top.at(-1), device.step().mod(3));
});
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
  const table = [0.5, 1, 2, -1];
  const texts = {
    greedy: greedy().text,
    tempered: tempered({ temperature: 0.7, p: 0.9 }).text,
    mirostat: mirostat({ mu: 10 }).text,
    penalized: penalized().text,
    green: green({ key: device.int(42) }).text,
    shapes: shapes({ table }).text,
  };
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
  ];
  const context = new Context(Model.load()).fill("Once upon a time");
  const first = context.generate(counting({ next: device.int(0) }), { maxTokens: 5, stop: [] });
  const tokens = await first.collectTokens();
  const again = counting(await first.state());
  const more = await context.generate(again, { maxTokens: 3, stop: [] }).collectTokens();
  const plain = new Context(Model.load()).fill("Once upon a time");
  const drawn = plain.generate(tempered({ temperature: 0.7, p: 0.9 }, { seed: 3 }), { maxTokens: 8 });
  return JSON.stringify({ texts, mistakes, tokens, more, drawn: await drawn.collectTokens() });
}
