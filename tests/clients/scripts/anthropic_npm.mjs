// Anthropic's official client in JavaScript.

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import { add, BASE, check, MODEL, run } from "./cases.mjs";

const client = new Anthropic({ baseURL: BASE, apiKey: "none" });
const HI = [{ role: "user", content: "What is the capital of Thessel?" }];
const ASK = { model: MODEL, messages: HI, max_tokens: 24, temperature: 0 };
const Point = z.object({ kind: z.enum(["a", "b"]), inner: z.object({ n: z.literal(1) }).optional() });
const tool = betaZodTool({
  name: "point",
  description: "Puts a point.",
  inputSchema: Point,
  run: () => [{ type: "text", text: "done" }],
});
const PLAIN = { name: "point", input_schema: z.toJSONSchema(Point), eager_input_streaming: true };
const FORCED = { ...ASK, max_tokens: 120, tools: [PLAIN], tool_choice: { type: "any" } };

add(async function message_and_stream() {
  const whole = await client.messages.create(ASK);
  const stream = client.messages.stream(ASK);
  check((await stream.finalText()) === whole.content[0].text);
  let text = "";
  for await (const event of await client.messages.create({ ...ASK, stream: true })) {
    if (event.type === "content_block_delta") text += event.delta.text;
  }
  check(text === whole.content[0].text, text);
  const { role, content } = await stream.finalMessage();
  await client.messages.create({ ...ASK, messages: [...HI, { role, content }, ...HI] });
});

add(async function tools_and_back() {
  const told = [...HI];
  for (const streams of [false, true]) {
    const ask = { ...FORCED, messages: told };
    const answer = streams
      ? await client.messages.stream(ask).finalMessage()
      : await client.messages.create(ask);
    const calls = answer.content.filter(({ type }) => type === "tool_use");
    check(calls.length > 0 && calls.every(({ input }) => Point.safeParse(input).success), answer);
    const results = calls.map(({ id }) => ({
      type: "tool_result",
      tool_use_id: id,
      content: [{ type: "text", text: "done" }],
    }));
    told.push({ role: "assistant", content: answer.content }, { role: "user", content: results });
  }
  await client.messages.create({ ...ASK, tools: [PLAIN], messages: told });
});

add(async function tool_runner() {
  const named = { type: "tool", name: "point" };
  for (const stream of [false, true]) {
    const runner = client.beta.messages.toolRunner({
      ...{ ...ASK, tools: [tool], tool_choice: named, max_tokens: 120, max_iterations: 2, stream },
    });
    let count = 0;
    for await (const _ of runner) count += 1;
    check(count === 2, count);
  }
});

add(async function parse() {
  const answer = await client.messages.parse({
    ...{ ...ASK, max_tokens: 200, output_config: { format: zodOutputFormat(Point) } },
  });
  check(Point.safeParse(answer.parsed_output).success, answer);
});

add(async function models_and_counts() {
  const names = [];
  for await (const each of client.models.list()) names.push(each.id);
  check(names.includes(MODEL), names);
  const counted = await client.messages.countTokens({ model: MODEL, messages: HI });
  const { usage } = await client.messages.create(ASK);
  check(counted.input_tokens === usage.input_tokens + usage.cache_read_input_tokens, counted);
});

add(async function errors() {
  for (const stream of [false, true]) {
    const ask = { ...ASK, model: "claude", stream };
    const error = await client.messages.create(ask).catch((each) => each);
    check(error instanceof Anthropic.NotFoundError && error.requestID, error);
    check(error.error.error.type === "not_found_error", error);
  }
});

add(async function left() {
  const long = { ...ASK, max_tokens: 1500, system: "Write a long story." };
  const stream = client.messages.stream(long);
  stream.once("text", () => stream.abort());
  const error = await stream.done().catch((each) => each);
  check(error instanceof Anthropic.APIUserAbortError, error);
  await client.messages.create(ASK);
});

await run();
