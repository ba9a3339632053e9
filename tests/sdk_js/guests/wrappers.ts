// What the SDK has beside generations: contexts that are saved, tools.

import { Context, http, images, Model, PieError, runtime, tools } from "inferlet";

const TEXT = "The capital of Thessel is Argon. It lies on the river Penna. The capital of Draven is";

async function flushed(text: string = TEXT): Promise<Context> {
  const context = new Context(Model.load()).fill(text);
  await context.flush();
  return context;
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
  async saved() {
    const context = await flushed();
    context.retain(5, 60, { first: 0, last: 3 });
    context.save("kept");
    const { length, nextPosition } = context;
    const opened = Context.open(Model.load(), "kept", { nextPosition: nextPosition + 4 }) as Context;
    Context.delete(Model.load(), "kept");
    return [opened.length - length, opened.nextPosition - nextPosition];
  },

  async log() {
    runtime.log(`a${"\u{1f600}".repeat(40_000)}`);
    runtime.log("\ud83d");
    return true;
  },

  async many(count: number) {
    const context = new Context(Model.load()).append(Array(count).fill(5));
    return context.fork().length;
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
