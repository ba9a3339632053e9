// Ollama's client in JavaScript.

import { Ollama } from "ollama";
import { z } from "zod";
import { add, BASE, check, MODEL, run } from "./cases.mjs";

const client = new Ollama({ host: BASE });
const HI = [{ role: "user", content: "What is the capital of Thessel?" }];
const ASK = { model: MODEL, messages: HI, options: { temperature: 0, num_predict: 24 } };
const Point = z.object({ kind: z.enum(["a", "b"]) });

add(async function chat_and_stream() {
  const whole = await client.chat(ASK);
  let text = "";
  let last = null;
  for await (const part of await client.chat({ ...ASK, stream: true })) {
    text += part.message.content;
    last = part;
  }
  check(text === whole.message.content, text, whole);
  check(last.done && last.eval_count === whole.eval_count, last);
  await client.chat({ ...ASK, messages: [...HI, whole.message, ...HI] });
});

add(async function generate() {
  const whole = await client.generate({ model: MODEL, prompt: "Hi", options: ASK.options });
  let text = "";
  const ask = { model: MODEL, prompt: "Hi", options: ASK.options, stream: true };
  for await (const part of await client.generate(ask)) text += part.response;
  check(text === whole.response, text);
});

add(async function format() {
  const { message } = await client.chat({ ...ASK, format: z.toJSONSchema(Point) });
  check(Point.safeParse(JSON.parse(message.content)).success, message);
});

add(async function tools() {
  const tool = { type: "function", function: { name: "point", parameters: z.toJSONSchema(Point) } };
  const call = { function: { name: "point", arguments: { kind: "a" } } };
  const told = [...HI, { role: "assistant", content: "", tool_calls: [call] }];
  told.push({ role: "tool", tool_name: "point", content: "done" });
  const { message } = await client.chat({ ...ASK, messages: told, tools: [tool] });
  await client.chat({ ...ASK, messages: [...told, message, ...HI], tools: [tool] });
});

add(async function models() {
  for (const { models } of [await client.list(), await client.ps()])
    check(models.some((each) => each.model === MODEL));
  check((await client.show({ model: MODEL })).capabilities.includes("completion"));
});

add(async function unknown_model() {
  const error = await client.chat({ ...ASK, model: "llama9" }).catch((each) => each);
  check(error.status_code === 404 && error.message.includes("llama9"), error);
});

add(async function left() {
  const stream = await client.chat({ ...ASK, options: { num_predict: 1000 }, stream: true });
  setTimeout(() => stream.abort(), 100);
  const read = async () => {
    for await (const _ of stream);
  };
  const error = await read().catch((each) => each);
  check(error === undefined || error.name === "AbortError", error);
  await client.chat(ASK);
});

await run();
