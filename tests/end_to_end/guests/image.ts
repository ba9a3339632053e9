// `image.py`, in TypeScript.

import { Context, images, Model, PieError, session } from "inferlet";

const commands: Record<string, (image: Uint8Array, ...args: string[]) => Promise<string>> = {
  async facts(image) {
    const { width, height } = images.sizeOf(image);
    return `${width} x ${height}: ${images.tokensOf(Model.load(), image)}`;
  },

  async describe(image, before, after, count) {
    const context = new Context(Model.load()).append(numbers(before));
    await context.image(image);
    const seen = context.tokens.filter((token) => token === -1).length;
    if (seen !== images.tokensOf(context.model, image)) throw new Error(`${seen} places`);
    const texts: string[] = [];
    for (const one of [context, context.fork()]) texts.push(await following(one.append(numbers(after)), count));
    return texts.join("; ");
  },

  async edit(image, before, after, count) {
    const context = new Context(Model.load());
    const start = numbers(before).length;
    const found: number[] = [];
    for (let time = 0; time < 2; time++) {
      context.truncate(Math.min(start, context.length));
      found.push(context.nextPosition);
      context.append(numbers(before).slice(context.nextPosition));
      await context.image(image);
      found.push(context.nextPosition);
    }
    const end = context.length;
    await context.append(numbers(after)).flush();
    const pages = Math.ceil(end / context.pageSize) * context.pageSize;
    const forks = Array.from({ length: 4 }, () => context.fork());
    forks[0].drop(0, pages);
    await forks[0].image(image);
    forks[1].evict(Array.from({ length: end - start }, (_, i) => start + i));
    forks[2].truncate(start + 2);
    forks[3].truncate(start);
    for (const fork of forks.slice(2)) fork.append(numbers(after));
    const texts: string[] = [];
    for (const one of [context, ...forks]) {
      found.push(one.nextPosition);
      texts.push(await following(one, count));
    }
    return [found.join(" "), ...texts].join("; ");
  },

  async try(image, before, count) {
    const context = new Context(Model.load()).append(numbers(before));
    let error = "none";
    try {
      await context.image(image);
    } catch (wrong) {
      if (!(wrong instanceof PieError)) throw wrong;
      error = wrong.message;
    }
    return `${error}; ${await following(context, count)}`;
  },
};

async function following(context: Context, count: string): Promise<string> {
  const generator = context.generate(undefined, { maxTokens: Number(count), stop: [] });
  return (await generator.collectTokens()).join(" ");
}

function numbers(text: string): number[] {
  return text.split(" ").map(Number);
}

export async function main([command, ...args]: string[]): Promise<string> {
  return commands[command](await session.receiveBlob(), ...args);
}
