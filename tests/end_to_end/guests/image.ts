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
