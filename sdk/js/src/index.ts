/**
 * The SDK of JavaScript and TypeScript inferlets: programs that run beside the model.
 *
 *     import { Context, Model, Sampler, session } from "inferlet";
 *
 *     export async function main(args: string[]): Promise<string> {
 *       const context = new Context(Model.load()).fill("The capital of France is");
 *       const generator = context.generate(Sampler.argmax(), { maxTokens: 16 });
 *       for await (const text of generator.streamText()) session.send(text);
 *       return "";
 *     }
 *
 * Run it with `pie-py run FILE`. The names are those of the Python SDK, in camelCase; keyword
 * arguments are an object at the end. `raw` is the server's contract itself.
 */

export {
  Context,
  type ContextOptions,
  type GenerateOptions,
  type OpenOptions,
} from "./context.ts";
export * as device from "./device.ts";
export { PieError, UsageError } from "./errors.ts";
export { Generator, GenStep, Output } from "./generation.ts";
export { Grammar, Matcher, type SchemaOptions } from "./grammar.ts";
export * as http from "./http.ts";
export * as images from "./images.ts";
export { gather, race, ready } from "./loop.ts";
export * as mcp from "./mcp.ts";
export * as messaging from "./messaging.ts";
export { type Message, Model, Tokenizer } from "./model.ts";
export { type Option, parseArgs } from "./options.ts";
export * as raw from "./raw.ts";
export * as runtime from "./runtime.ts";
export { Distribution, Sampler } from "./sample.ts";
export type { SamplerParameters } from "./sampler_parameters.ts";
export * as session from "./session.ts";
export * as store from "./store.ts";
export { TextDecoder } from "./stream.ts";
export * as tools from "./tools.ts";
