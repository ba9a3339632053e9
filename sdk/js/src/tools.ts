/**
 * Calls of tools in what a model writes, in the formats of the model families.
 *
 * | family | a call |
 * |---|---|
 * | Hermes, Qwen | `<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>` |
 * | Mistral | `[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]` |
 * | Llama 3 | `<|python_tag|>{"name": "add", "parameters": {"a": 1}}`, or the JSON alone |
 * | Llama 4, pie-tiny | `[add(a=1)]`, `Action: add(1)`, `[CALL]a1[HEAD]add(a=1)[END]` |
 */

import { readArguments } from "./literals.ts";

const MARKS = /<\|?\/?\w+\|?>|\[TOOL_CALLS\]|\[CALL\]\w*|\[HEAD\]|\[END\]|^\s*Action:/gm;
const CALL = /([A-Za-z_][\w.]*)\(/g;

/** A call that a model wants. */
export interface ToolCall {
  /** Of the tool. */
  name: string;
  /** By name. */
  arguments: Record<string, unknown>;
  /** Arguments without a name, in order. */
  values: unknown[];
}

/**
 * The calls in a text, in order. What is no call, and a call that is not complete, is left out. A name
 * with parentheses is a call only where their content reads as literals.
 */
export function parse(text: string): ToolCall[] {
  const plain = text.replace(MARKS, " ");
  const found = jsonCalls(plain);
  return found.length ? found : pythonCalls(plain);
}

/** A tool of a list: OpenAI's, with `function` around or not, Anthropic's or MCP's. */
export interface ListedTool {
  name?: string;
  function?: { name: string; parameters?: object };
  parameters?: object;
  input_schema?: object;
  inputSchema?: object;
}

/**
 * The JSON schema of one call, for a grammar.
 *
 * @param tools for each name the JSON schema of its arguments; or a list, as in the chat template's
 *   `tools` or of `mcp.listTools`.
 */
export function schema(tools: Record<string, object> | ListedTool[]): object {
  const calls = (Array.isArray(tools) ? tools.map(named) : Object.entries(tools)).map(([name, given], at) => ({
    type: "object",
    // With an id it is a resource of its own: `#/$defs/X` in it is its own X.
    properties: { name: { const: name }, arguments: { ...given, $id: `${at}` } },
    required: ["name", "arguments"],
    additionalProperties: false,
  }));
  return { anyOf: calls };
}

function named(tool: ListedTool): [string, object] {
  const given: ListedTool = tool?.function ?? tool;
  if (typeof given?.name !== "string") {
    throw new TypeError(`a tool is {"name": ..., "parameters": {...}}, not ${JSON.stringify(tool)}`);
  }
  return [given.name, given.parameters ?? given.input_schema ?? given.inputSchema ?? { type: "object" }];
}

function jsonCalls(text: string): ToolCall[] {
  const calls: ToolCall[] = [];
  for (let at = 0; (at = text.indexOf("{", at)) >= 0; ) {
    const end = endOfObject(text, at);
    const found = end === null ? null : parsed(text.slice(at, end));
    at = found === null ? at + 1 : (end as number);
    const given = found?.arguments ?? found?.parameters ?? {};
    if (typeof found?.name === "string" && typeof given === "object" && !Array.isArray(given)) {
      calls.push({ name: found.name, arguments: given, values: [] });
    }
  }
  return calls;
}

function parsed(text: string): Record<string, any> | null {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Where the object ends that begins at a brace: behind the brace that closes it. */
function endOfObject(text: string, start: number): number | null {
  let depth = 0;
  for (const { 0: mark, index } of text.slice(start).matchAll(/"(?:[^"\\]|\\[^])*"|[{}]/g)) {
    if (mark === "{") depth++;
    else if (mark === "}" && --depth === 0) return start + index + 1;
  }
  return null;
}

function pythonCalls(text: string): ToolCall[] {
  const calls: ToolCall[] = [];
  let end = 0;
  for (const match of text.matchAll(CALL)) {
    if (match.index < end) continue; // within the arguments of the one before
    const found = readArguments(text, match.index + match[0].length);
    if (found === null) continue;
    const [{ named, values }, behind] = found;
    end = behind;
    calls.push({ name: match[1], arguments: named, values });
  }
  return calls;
}
