// Continues a prompt, and sends the text as it comes.

import { Context, Model, Sampler, parseArgs } from "inferlet";

const OPTIONS = {
  prompt: { type: String, help: "the text to go on from" },
  maxTokens: { type: Number, default: 64, help: "the most tokens to add" },
};

export async function main(args: string[]): Promise<void> {
  const { prompt, maxTokens } = parseArgs(args, OPTIONS);
  const context = new Context(Model.load()).fill(prompt);
  await context.generate(Sampler.topP(0.7, 0.9), { maxTokens }).sendText();
}
