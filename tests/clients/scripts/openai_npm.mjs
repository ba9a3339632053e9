// The official client of OpenAI's, in JavaScript.

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { zodResponsesFunction } from "openai/helpers/zod";
import { z } from "zod";
import { add, check, MODEL, run, V1 } from "./cases.mjs";

const client = new OpenAI({ baseURL: V1, apiKey: "none" });
const chat = client.chat.completions;
const HI = [{ role: "user", content: "What is the capital of Thessel?" }];
const ASK = { model: MODEL, messages: HI, max_tokens: 24, temperature: 0 };
const INPUT = { model: MODEL, input: HI, max_output_tokens: 24, temperature: 0 };
const Inner = z.object({ kind: z.enum(["a", "b"]) });
const Point = z.object({ first: Inner, second: Inner.nullable() });
const tool = zodFunction({ name: "point", parameters: Point, function: () => "done" });
const flat = zodResponsesFunction({ name: "point", parameters: Point });
const FORCED = { ...ASK, max_tokens: 200, tools: [tool], tool_choice: "required" };
FORCED.parallel_tool_calls = false;

add(async function chat_and_stream() {
  const whole = await chat.create(ASK);
  let text = "";
  let reason = null;
  for await (const chunk of await chat.create({ ...ASK, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    reason = chunk.choices[0]?.finish_reason ?? reason;
  }
  check(text === whole.choices[0].message.content, text, whole);
  check(reason === whole.choices[0].finish_reason, reason);
  const runner = chat.stream(ASK);
  check((await runner.finalContent()) === text);
  const told = [...HI, whole.choices[0].message, ...HI, await runner.finalMessage(), ...HI];
  await chat.create({ ...ASK, messages: told });
});

add(async function chat_parse() {
  const ask = { ...ASK, max_tokens: 200, response_format: zodResponseFormat(Point, "point") };
  const { message } = (await chat.parse(ask)).choices[0];
  check(Point.safeParse(message.parsed).success, message);
  await chat.create({ ...ASK, messages: [...HI, message, ...HI] });
  const last = await chat.stream(ask).finalChatCompletion();
  check(Point.safeParse(last.choices[0].message.parsed).success, last);
});

add(async function tools_and_back() {
  const { message } = (await chat.parse(FORCED)).choices[0];
  check(Point.safeParse(message.tool_calls[0].function.parsed_arguments).success, message);
  const streamed = await chat.stream(FORCED).finalChatCompletion();
  const again = streamed.choices[0].message;
  check(again.tool_calls[0].function.name === "point", again);
  const result = (calls) =>
    calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: "done" }));
  const told = [...HI, message, ...result(message.tool_calls)];
  told.push(again, ...result(again.tool_calls), ...HI);
  await chat.create({ ...ASK, tools: [tool], messages: told });
});

add(async function run_tools() {
  const named = { type: "function", function: { name: "point" } };
  const limits = { maxChatCompletions: 2 };
  const runner = chat.runTools({ ...FORCED, tool_choice: named }, limits);
  await runner.done();
  check(runner.messages.some((message) => message.role === "tool"), runner.messages);
  const streamed = chat.runTools({ ...FORCED, tool_choice: named, stream: true }, limits);
  await streamed.done();
  check(streamed.messages.some((message) => message.role === "tool"), streamed.messages);
});

add(async function responses_and_stream() {
  const whole = await client.responses.create(INPUT);
  check(whole.output_text.length > 0);
  const runner = client.responses.stream(INPUT);
  const kinds = [];
  for await (const event of runner) kinds.push(event.type);
  const last = await runner.finalResponse();
  check(last.output_text === whole.output_text, last);
  check(kinds[0] === "response.created", kinds);
  await client.responses.create({ ...INPUT, input: [...HI, ...last.output, ...HI] });
  const next = await client.responses.create({ ...INPUT, previous_response_id: whole.id });
  check((await client.responses.retrieve(next.id)).output_text === next.output_text);
  let count = 0;
  for await (const item of client.responses.inputItems.list(next.id)) count += item ? 1 : 0;
  check(count === 3, count);
  await client.responses.delete(next.id);
});

add(async function responses_parse() {
  const ask = { ...INPUT, max_output_tokens: 200, text: { format: zodTextFormat(Point, "point") } };
  const answer = await client.responses.parse(ask);
  check(Point.safeParse(answer.output_parsed).success, answer);
  const last = await client.responses.stream(ask).finalResponse();
  check(Point.safeParse(last.output_parsed).success, last);
  await client.responses.create({ ...INPUT, input: [...HI, ...answer.output, ...HI] });
});

add(async function responses_tools_and_back() {
  const ask = { ...INPUT, max_output_tokens: 200, tools: [flat], parallel_tool_calls: false };
  const said = [...HI];
  for (const choice of ["required", { type: "function", name: "point" }]) {
    const answer = await client.responses.parse({ ...ask, input: said, tool_choice: choice });
    said.push(...answer.output);
    for (const { type, call_id, parsed_arguments } of answer.output) {
      check(type === "function_call" && Point.safeParse(parsed_arguments).success, answer);
      said.push({ type: "function_call_output", call_id, output: JSON.stringify({ ok: true }) });
    }
  }
  await client.responses.create({ ...ask, input: said });
});

add(async function completions_and_models() {
  const ask = { model: MODEL, prompt: "The capital of", max_tokens: 8, temperature: 0 };
  const whole = await client.completions.create(ask);
  let text = "";
  for await (const part of await client.completions.create({ ...ask, stream: true })) {
    text += part.choices[0]?.text ?? "";
  }
  check(text === whole.choices[0].text, text);
  const names = [];
  for await (const each of client.models.list()) names.push(each.id);
  check(names.includes(MODEL), names);
});

add(async function errors() {
  for (const [kind, code, wrong] of [
    [OpenAI.NotFoundError, "model_not_found", { model: "no" }],
    [OpenAI.BadRequestError, "invalid_value", { top_p: 7 }],
    [OpenAI.BadRequestError, "unknown_parameter", { foo: 1 }],
  ]) {
    for (const stream of [false, true]) {
      const error = await chat.create({ ...ASK, ...wrong, stream }).catch((each) => each);
      check(error instanceof kind && error.code === code && error.requestID, error);
    }
  }
});

add(async function left_and_timed_out() {
  const long = { ...ASK, max_tokens: 1500, ignore_eos: true };
  const stream = await chat.create({ ...long, stream: true });
  for await (const chunk of stream) if (chunk.choices) break;
  const controller = new AbortController();
  setTimeout(() => controller.abort(), 100);
  const left = await chat.create(long, { signal: controller.signal }).catch((each) => each);
  check(left instanceof OpenAI.APIUserAbortError, left);
  const late = await chat.create(long, { timeout: 100, maxRetries: 0 }).catch((each) => each);
  check(late instanceof OpenAI.APIConnectionTimeoutError, late);
  await chat.create(ASK);
});

await run();
