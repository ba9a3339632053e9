// Best of n: several answers are sampled at once, and the model says which is the likeliest; a value
// model is main.py's.
//
// main.py in TypeScript. Run: pie-py run best_of_n --entry js

import { Context, Model, parseArgs, Sampler } from "inferlet";

const OPTIONS = {
  prompt: { type: String, default: "The best way to learn is", help: "what to continue" },
  answers: { type: Number, default: 4, help: "how many are sampled" },
  temperature: { type: Number, default: 0.8, help: "of the sampling" },
  maxTokens: { type: Number, default: 24, help: "most tokens of an answer" },
  seed: { type: Number, default: 1, help: "makes it repeatable" },
};

/** Returns the answers, the best first, with the mean log-probability of their tokens. */
export async function main(args: string[]): Promise<{ text: string; score: number }[]> {
  const { prompt, answers, temperature, maxTokens, seed } = parseArgs(args, OPTIONS);
  const context = new Context(Model.load()).fill(prompt);
  await context.flush();
  const sample = (_: unknown, i: number) => {
    const sampler = Sampler.multinomial(temperature, seed + i);
    return context.fork().generate(sampler, { maxTokens }).collectScored();
  };
  const sampled = await Promise.all(Array.from({ length: answers }, sample));
  const mean = (logs: number[]) => logs.reduce((sum, log) => sum + log, 0) / logs.length;
  return sampled
    .filter(({ tokens }) => tokens.length > 0)
    .map(({ tokens, logprobs }) => ({ text: context.model.tokenizer.decode(tokens), score: mean(logprobs) }))
    .sort((one, other) => other.score - one.score);
}
