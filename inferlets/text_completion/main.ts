// Continues a prompt and streams the answer: main.py in TypeScript.
//
// Run: pie-py run inferlets/text_completion --entry js --prompt "The capital of"

import { Context, Model, parseArgs, Sampler } from "inferlet";

const OPTIONS = {
  prompt: { type: String, help: "what to continue" },
  maxTokens: { type: Number, default: 64, help: "most tokens to generate" },
  temperature: { type: Number, default: 0, help: "0 is greedy" },
  topP: { type: Number, default: 1, help: "share of likelihood to choose from" },
  topK: { type: Number, default: undefined, help: "number of tokens to choose from" },
  seed: { type: Number, default: undefined, help: "makes the choices repeatable" },
};

/** Sends the answer to the client in pieces, as it is generated. */
export async function main(args: string[]): Promise<void> {
  const { prompt, maxTokens, temperature, topP, topK, seed } = parseArgs(args, OPTIONS);
  const sampler = new Sampler({ temperature, topP, topK, seed });
  const context = new Context(Model.load()).fill(prompt);
  await context.generate(sampler, { maxTokens }).sendText();
}
