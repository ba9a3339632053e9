// One thing that the SDK does for each name; the first argument says which, the result is JSON.

import {
  Context,
  Distribution,
  gather,
  Grammar,
  Model,
  messaging,
  PieError,
  race,
  runtime,
  Sampler,
  session,
  store,
} from "inferlet";
import { shout } from "./lib/words.js";

const PROMPT = "The capital of";

function filled(text: string = PROMPT): Context {
  return new Context(Model.load()).fill(text);
}

function coded(error: unknown): string {
  if (error instanceof PieError) return error.code;
  return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
}

async function refused(call: () => unknown): Promise<string> {
  try {
    await call();
  } catch (error) {
    return coded(error);
  }
  return "";
}

const features: Record<string, () => unknown> = {
  async ways() {
    const sizes = { maxTokens: 24 };
    const texts: string[] = [];
    texts.push(await filled().generate(Sampler.argmax(), sizes).collectText());
    texts.push(await filled().generate(undefined, sizes).sendText());
    let streamed = "";
    for await (const piece of filled().generate(undefined, sizes).streamText()) streamed += piece;
    texts.push(streamed);
    const model = Model.load();
    texts.push(model.tokenizer.decode(await filled().generate(undefined, sizes).collectTokens()));
    const tokens: number[] = [];
    for await (const token of filled().generate(undefined, sizes).streamTokens()) tokens.push(token);
    texts.push(model.tokenizer.decode(tokens));
    const stepped: number[] = [];
    for await (const step of filled().generate(undefined, sizes)) {
      stepped.push(...(await step.execute()).tokens);
    }
    texts.push(model.tokenizer.decode(stepped));
    const chosen = filled().generate(undefined, sizes);
    const own: number[] = [];
    for await (const step of chosen) own.push(...chosen.accept([(await step.distribution(1)).maxIndex()]));
    texts.push(model.tokenizer.decode(own));
    return texts;
  },

  async forks() {
    const context = filled();
    await context.flush();
    const forks = [context.fork(), context.fork(), context.fork()];
    forks[1].fill(" Draven");
    const texts = await gather(...forks.map((fork) => fork.generate(undefined, { maxTokens: 8 }).collectText()));
    for (const fork of forks) fork.release();
    const after = await context.generate(undefined, { maxTokens: 8 }).collectText();
    return { texts, after, length: context.length };
  },

  async savedFork() {
    const model = Model.load();
    const context = filled();
    await context.flush();
    const fork = context.fork();
    const { length } = fork;
    await context.fill(" Thessel is").flush();
    await fork.save("of a fork");
    const opened = Context.open(model, "of a fork")?.length ?? null;
    Context.delete(model, "of a fork");
    await context.fill(" far").flush();
    return [length, opened];
  },

  async race() {
    const branches = [filled(), filled("Once")].map((c) => c.generate(undefined, { maxTokens: 4 }).collectText());
    return [await race(branches, (text) => text.length > 0) !== null, await race(branches, () => false)];
  },

  async stops() {
    const whole = await filled().generate(undefined, { maxTokens: 24 }).collectText();
    const stop = whole.slice(6, 9);
    const context = filled();
    const collected = await context.generate(undefined, { maxTokens: 24, stop }).collectText();
    let streamed = "";
    const generator = filled().generate(undefined, { maxTokens: 24, stop });
    for await (const piece of generator.streamText()) streamed += piece;
    return { whole, stop, collected, streamed, done: generator.isDone };
  },

  async seeds() {
    const text = (sampler: Sampler, seed?: number) =>
      filled().generate(sampler, { maxTokens: 16, seed }).collectText();
    const penalty = new Sampler({ repetitionPenalty: 1.3, temperature: 0.9, topP: 0.9, seed: 5 });
    const own = async () => {
      const tokens: number[] = [];
      for await (const step of filled().generate(Sampler.topK(1, 20, 9), { maxTokens: 8 })) {
        tokens.push(...(await step.execute()).tokens);
      }
      return tokens;
    };
    return {
      same: [await text(Sampler.topP(1, 0.9), 7), await text(Sampler.topP(1, 0.9), 7)],
      other: await text(Sampler.topP(1, 0.9), 8),
      penalty: [await text(penalty), await text(penalty)],
      own: [await own(), await own()],
      random: [Math.random(), crypto.randomUUID(), runtime.randomBytes(3).length],
    };
  },

  async grammar() {
    const schema = { type: "object", properties: { n: { type: "integer", maximum: 99 } }, required: ["n"] };
    const json = Grammar.jsonSchema(schema);
    const generator = filled().generate(Sampler.topP(1, 0.9, 1), { grammar: json, maxTokens: 40 });
    const text = await generator.collectText();
    const choice = filled().generate(undefined, { grammar: Grammar.choice(["red", "green"]) });
    const cut = filled().generate(undefined, { maxTokens: 3 });
    return {
      text,
      complete: generator.isComplete,
      choice: await choice.collectText(),
      oneText: await refused(() => Grammar.choice("red")),
      value: await filled().generate(undefined, { maxTokens: 40 }).collectJson(schema),
      cut: await refused(() => cut.collectJson(schema)),
    };
  },

  async abandoned() {
    const grammar = Grammar.choice(["red", "green"]);
    const begin = async (context: Context) => {
      for await (const _ of context.generate(undefined, { grammar, maxTokens: 4 }).streamTokens()) return;
    };
    const one = filled();
    for (let i = 0; i < 70; i++) await begin(one);
    for (let i = 0; i < 260; i++) {
      const context = filled();
      await begin(context);
      context.release();
    }
    return one.length;
  },

  async choose() {
    const seen: number[] = [];
    const generator = filled().generate(undefined, { maxTokens: 4 });
    for await (const step of generator) {
      const { tokens } = await step.distribution();
      seen.push(tokens.length);
      generator.accept([tokens[1]]);
    }
    return {
      tokens: generator.tokensGenerated,
      seen,
      subclass: await refused(() => new (class extends Sampler {})()),
    };
  },

  async several() {
    const greedy = await filled().generate(undefined, { maxTokens: 6 }).collectTokens();
    const next: Distribution[] = await filled().forward(greedy.slice(0, 2), 1);
    return { greedy, next: next.map((each) => each.tokens[0]) };
  },

  async scored() {
    const options = { maxTokens: 9, stop: ["nowhere"] };
    const sampler = { temperature: 0.8, seed: 5 };
    const steps: (number | undefined)[] = [];
    for await (const step of filled().generate(new Sampler({ ...sampler, logprobs: 1 }), options)) {
      steps.push((await step.execute()).logprob);
    }
    const ways = [options, { maxTokens: 9 }].map((each) => filled().generate(new Sampler(sampler), each));
    const found = await Promise.all(ways.map((each) => each.collectScored()));
    return { steps, found: found.map((each) => each.logprobs), tokens: found[0].tokens };
  },

  async chat() {
    const model = Model.load();
    if (!model.hasChatTemplate) return await refused(() => new Context(model).user("Hi").length);
    const context = new Context(model).system("Be brief.").user("Hi");
    const answer = await context.generate(undefined, { maxTokens: 8 }).collectText();
    context.user("And?");
    return { answer, tokens: context.tokens.length };
  },

  async saved() {
    const model = Model.load();
    const context = filled("One two three four five six seven eight nine ten eleven twelve");
    await context.flush();
    context.save("js-saved");
    const listed = Context.saved(model).includes("js-saved");
    const opened = Context.take(model, "js-saved") as Context;
    opened.fill(" and");
    context.fill(" and");
    const texts = [opened, context].map((each) => each.generate(undefined, { maxTokens: 8 }).collectText());
    return { listed, texts: await Promise.all(texts), gone: Context.open(model, "js-saved") };
  },

  async server() {
    await store.set("js/a", new TextEncoder().encode("0"));
    await store.commit({ "js/a": "1" }, { "js/a": "0" });
    await store.update("js/a", (old) => `${new TextDecoder().decode(old!)}2`);
    const keys: string[] = [];
    for await (const key of store.keys("js/")) keys.push(key);
    const value = await store.getText("js/a");
    await store.delete("js/a");
    const news = messaging.subscribe("js");
    await messaging.broadcast("js", { a: 1 });
    await messaging.push("jobs", "x");
    return [keys, value, await store.get("js/a"), await news.receive(), await messaging.pull("jobs")];
  },

  async clocks() {
    const order: string[] = [];
    const begun = performance.now();
    setTimeout(() => order.push("late"), 40);
    setTimeout((what: string) => order.push(what), 1, "early");
    const never = setTimeout(() => order.push("never"), 10);
    clearTimeout(never);
    const beats = await new Promise<number>((resolve) => {
      let count = 0;
      const timer = setInterval(() => {
        if (++count === 3) {
          clearInterval(timer);
          resolve(count);
        }
      }, 5);
    });
    await runtime.sleep(0.05);
    const passed = performance.now() - begun;
    const dates = [new Date(), new Date(0), Date.now()].map(Number);
    return { order, beats, passed, dates, kind: new Date() instanceof Date, text: typeof Date() };
  },

  async talk() {
    session.send("ask");
    const text = await session.receive();
    session.sendBlob(await session.receiveBlob());
    return shout(text);
  },

  log() {
    console.log("one", 2, { three: [3] });
    console.warn("careful\ntwo lines");
    console.error(new RangeError("far"));
    return runtime.username();
  },

  async wrong() {
    return [
      await refused(() => Model.load("none")),
      await refused(() => filled().truncate(99)),
      await refused(() => filled().generate(Sampler.topP(-1), { maxTokens: 2 }).collectText()),
      await refused(() => filled().generate(new Sampler({ repetitionPenalty: 0 })).collectText()),
      await refused(() => filled().append([-1]).flush()),
      await refused(() => new Context(Model.load()).generate().collectText()),
      await refused(async () => {
        const context = filled();
        const forgotten = context.generate(undefined, { maxTokens: 4 }).collectText();
        try {
          await context.generate(undefined, { maxTokens: 4 }).collectText();
        } finally {
          await forgotten;
        }
      }),
    ];
  },
};

export async function main([name]: string[]): Promise<unknown> {
  return await features[name]();
}
