// Vercel's AI SDK by three providers: OpenAI's (responses, chat), OpenAI-compatible, Anthropic's.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { z } from "zod";
import { add, check, MODEL, run, V1 } from "./cases.mjs";

const openai = createOpenAI({ baseURL: V1, apiKey: "none" });
const options = { baseURL: V1, name: "pie", includeUsage: true, supportsStructuredOutputs: true };
const MODELS = {
  responses: openai.responses(MODEL),
  chat: openai.chat(MODEL),
  compatible: createOpenAICompatible(options)(MODEL),
  anthropic: createAnthropic({ baseURL: V1, apiKey: "none" })(MODEL),
};
const HI = [{ role: "user", content: "What is the capital of Thessel?" }];
const Kind = z.enum(["a", "b"]);
const Point = z.object({ first: z.object({ kind: Kind }), second: z.object({ kind: Kind }) });
const tools = {
  point: ai.tool({
    description: "Puts a point.",
    inputSchema: Point,
    execute: async ({ first }) => ({ put: first.kind }),
  }),
};
const named = { type: "tool", toolName: "point" };

globalThis.AI_SDK_LOG_WARNINGS = false;

for (const [name, model] of Object.entries(MODELS)) {
  const ask = { model, messages: HI, maxOutputTokens: 30, temperature: 0 };
  const wide = { ...ask, maxOutputTokens: 200 };
  const own = (title, act) => add(Object.defineProperty(act, "name", { value: `${name}: ${title}` }));

  own("text and stream", async () => {
    const whole = await ai.generateText({ ...ask, system: "Be brief." });
    const { usage, finishReason } = whole;
    check(usage.outputTokens > 0 && usage.inputTokens > 0, usage);
    check(["stop", "length"].includes(finishReason), finishReason);
    const stream = ai.streamText({ ...ask, system: "Be brief." });
    let text = "";
    for await (const part of stream.textStream) text += part;
    check(text === whole.text, text, whole.text);
    check((await stream.usage).outputTokens === usage.outputTokens, await stream.usage);
    check((await stream.finishReason) === finishReason);
    check((await stream.warnings ?? []).length === 0, await stream.warnings);
    const told = [...HI, ...whole.response.messages, ...HI, ...(await stream.response).messages];
    await ai.generateText({ ...ask, messages: [...told, ...HI] });
  });

  own("objects", async () => {
    const output = ai.Output.object({ schema: Point });
    const whole = await ai.generateText({ ...wide, output });
    check(Point.safeParse(whole.output).success, whole.output);
    await ai.generateText({ ...ask, messages: [...HI, ...whole.response.messages, ...HI] });
    const stream = ai.streamText({ ...wide, output });
    for await (const part of stream.partialOutputStream) check(part !== null);
    check(Point.safeParse(await stream.output).success);
    const choice = ai.Output.choice({ options: ["sun", "rain"] });
    check(["sun", "rain"].includes((await ai.generateText({ ...wide, output: choice })).output));
    const { object } = await ai.generateObject({ ...wide, schema: Point });
    check(Point.safeParse(object).success, object);
    const streamed = ai.streamObject({ ...wide, schema: Point });
    for await (const part of streamed.partialObjectStream) check(part !== null);
    check(Point.safeParse(await streamed.object).success);
  });

  own("forced calls", async () => {
    const forced = { ...wide, tools, toolChoice: named };
    const whole = await ai.generateText(forced);
    check(Point.safeParse(whole.toolCalls[0].input).success, whole.toolCalls);
    check(whole.toolResults[0].output.put, whole.toolResults);
    const told = [...HI, ...whole.response.messages];
    const stream = ai.streamText({ ...forced, messages: told });
    await stream.consumeStream();
    check((await stream.toolCalls)[0].toolName === "point");
    told.push(...(await stream.response).messages, ...HI);
    await ai.generateText({ ...ask, tools, messages: told });
  });

  own("agent's steps", async () => {
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : named });
    const steps = { ...wide, tools, prepareStep, stopWhen: ai.stepCountIs(2) };
    check((await ai.generateText(steps)).steps.length === 2);
    const stream = ai.streamText(steps);
    const kinds = new Set();
    for await (const part of stream.fullStream) {
      kinds.add(part.type);
      if (part.type === "error") throw part.error;
    }
    check(kinds.has("tool-input-delta") && kinds.has("tool-result"), [...kinds]);
  });

  own("left", async () => {
    const long = { ...ask, maxOutputTokens: 1200, prompt: undefined };
    const stream = ai.streamText({ ...long, abortSignal: AbortSignal.timeout(150) });
    await stream.consumeStream({ onError: () => {} });
    await ai.generateText(ask);
  });

  own("errors", async () => {
    const long = [{ role: "user", content: "word ".repeat(20000) }];
    const error = await ai.generateText({ ...ask, messages: long }).catch((each) => each);
    check(ai.APICallError.isInstance(error) && error.statusCode === 400, error);
    check(!error.isRetryable && error.message.includes("context"), error.message);
  });
}

await run();
