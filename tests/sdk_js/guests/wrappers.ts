// What the SDK has beside generations: edits of contexts, memory, tools.

import {
  Context,
  http,
  images,
  introspect,
  Model,
  offload,
  PieError,
  runtime,
  tools,
} from "inferlet";

const TEXT = "The capital of Thessel is Argon. It lies on the river Penna. The capital of Draven is";

async function flushed(text: string = TEXT): Promise<Context> {
  const context = new Context(Model.load()).fill(text);
  await context.flush();
  return context;
}

function following(context: Context): Promise<number[]> {
  return context.generate(undefined, { maxTokens: 6, stop: [] }).collectTokens();
}

async function refused(call: () => unknown): Promise<string> {
  try {
    await call();
  } catch (error) {
    return error instanceof PieError ? error.code : String(error);
  }
  return "";
}

const wrappers: Record<string, (given: any) => Promise<unknown>> = {
  async tree() {
    const context = await flushed();
    const first = context.length;
    const [a, b, c] = (await context.distribution(3)).tokens;
    const plain = context.fork();
    const whole = await plain.forward([a, c], 2);
    const ahead = await context.forward([a, b, c, b], 2, { parents: [-1, 0, 0, -1] });
    context.keep(first, [0, 2]);
    const alone = (await flushed()).fork();
    const mask: [number, number][][] = [[[0, first + 1]], [[0, first + 2]]];
    const masked = await alone.forward([a, c], 2, { mask, positions: [first, first + 1] });
    return {
      likely: [ahead[0], ahead[2]].map((each) => each.tokens[0]),
      plain: [whole, masked].map((each) => each.map((one) => one.tokens[0])),
      kept: context.tokens.slice(first),
      path: [a, c],
      texts: [await following(context), await following(plain)],
      wrong: [
        await refused(() => context.forward([a], 1, { parents: [0] })),
        await refused(() => context.forward([a, b], 1, { positions: [1] })),
        await refused(() => context.keep(2, [1, 0])),
      ],
    };
  },

  async edits() {
    const context = await flushed();
    const { length, pageSize, tokens } = context;
    const [hidden, shown, dropped, closed, evicted] = Array.from({ length: 5 }, () => context.fork());
    hidden.hide(1, length - 1);
    shown.hide(1, length - 1).show(1, length - 1);
    dropped.drop(0, pageSize);
    closed.drop(0, pageSize, { close: true });
    evicted.evict([1, 3]);
    const wrong = [
      await refused(() => context.drop(1, pageSize)),
      await refused(() => context.evict([length])),
      await refused(() => context.hide(0, length + 1)),
    ];
    const plain = await following(context.fork());
    return {
      plain,
      shown: await following(shown),
      hidden: await following(hidden),
      lengths: [length, dropped.length, closed.length, evicted.length],
      positions: [dropped, closed, evicted].map((each) => each.nextPosition),
      evicted: JSON.stringify(evicted.tokens) === JSON.stringify(tokens.filter((_, i) => i !== 1 && i !== 3)),
      more: [await following(dropped), await following(closed), await following(evicted)].map((each) => each.length),
      pageSize,
      wrong,
    };
  },

  async joined() {
    const context = await flushed();
    context.retain(5, 60, { first: 0, last: 3 });
    const forks = [context.fork(), context.fork()];
    forks[0].fill(" Holt.");
    await forks[0].flush();
    forks[1].fill(" It is old.");
    context.join(...forks);
    await context.flush();
    context.save("joined");
    const { length, nextPosition } = context;
    const opened = Context.open(Model.load(), "joined", { nextPosition: nextPosition + 4 }) as Context;
    Context.delete(Model.load(), "joined");
    return {
      text: Model.load().tokenizer.decode(context.tokens),
      opened: [opened.length - length, opened.nextPosition - nextPosition],
      wrong: await refused(() => context.join()),
    };
  },

  async memory() {
    const texts: number[][] = [await following(await flushed())];
    const swapped = await flushed();
    offload.swapOut(swapped);
    const away = await refused(() => following(swapped.fork()));
    offload.swapIn(swapped);
    texts.push(await following(swapped));
    const gone = await flushed();
    offload.discard(gone);
    const empty = gone.pages.length;
    texts.push(await following(gone));
    const costs = await refused(() => offload.costs(Model.load()));
    return { texts, away, empty, costs };
  },

  async attention() {
    const context = await flushed();
    const whole = await introspect.attention(context, { observed: 2 });
    const heads = await introspect.attention(context, { detail: "heads" });
    return {
      sums: whole.map((row) => row.reduce((sum, each) => sum + each, 0)),
      widths: heads.map((row) => row.length),
      length: context.length,
      wrong: await refused(() => introspect.attention(context, { observed: 999 })),
    };
  },

  async tools(texts: string[]) {
    return texts.map(tools.parse);
  },

  async rest() {
    const headers = new http.Headers([["Set-Cookie", "a"], ["X", "1"], ["set-cookie", "b"]]);
    return [
      headers.get("Set-Cookie"),
      headers.getAll("SET-COOKIE"),
      tools.schema({ now: { type: "object" } }),
      tools.schema([{ function: { name: "now", parameters: { type: "object" } } }]),
      await refused(() => images.tokensOf(Model.load(), new Uint8Array(3))),
    ];
  },
};

export async function main([name, given = "null"]: string[]): Promise<unknown> {
  return await wrappers[name](JSON.parse(given));
}
