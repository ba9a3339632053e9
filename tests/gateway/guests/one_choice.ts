// Texts of samplers, each read whole, by tokens, step by step, and with looks at some steps.
import { Context, Model, Sampler, type SamplerParameters } from "inferlet";

async function texts(prompt: number[], parameters: SamplerParameters): Promise<string[]> {
  const { tokenizer } = Model.load();
  const options = { maxTokens: 12, stop: parameters.endTokens ?? [] };
  const generation = () => {
    const context = new Context(Model.load()).append(prompt);
    return context.generate(new Sampler(parameters), options);
  };
  const steps: number[] = [];
  for await (const step of generation()) steps.push(...(await step.execute()).tokens);
  const looks: number[] = [];
  for await (const step of generation()) {
    if (looks.length % 3 === 1) await step.distribution(5);
    looks.push(...(await step.execute()).tokens);
  }
  const tokens = await generation().collectTokens();
  return [await generation().collectText(), ...[tokens, steps, looks].map((one) => tokenizer.decode(one))];
}

export async function main([given]: string[]): Promise<string[][]> {
  const { prompt, samplers } = JSON.parse(given);
  const found: string[][] = [];
  for (const parameters of samplers) found.push(await texts(prompt, parameters));
  return found;
}
