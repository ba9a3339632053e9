/** Calls of tools in what a model writes in JSON: Hermes, Qwen, Mistral, Llama 3. */

/** A call that a model wants. */
export interface ToolCall {
  /** Of the tool. */
  name: string;
  /** By name. */
  arguments: Record<string, unknown>;
}

/**
 * The calls in a text, objects with `name` and `arguments` or `parameters`, in order. What is no call,
 * and a call that is not complete, is left out.
 */
export function parse(text: string): ToolCall[] {
  const calls: ToolCall[] = [];
  const ends = new Map<number, number | null>();
  for (let at = 0; (at = text.indexOf("{", at)) >= 0; ) {
    if (!ends.has(at)) findEnds(text, at, ends);
    const end = ends.get(at) ?? null;
    const found = end === null ? null : parsed(text.slice(at, end));
    at = found === null ? at + 1 : (end as number);
    const given = found?.arguments ?? found?.parameters ?? {};
    if (typeof found?.name === "string" && typeof given === "object" && !Array.isArray(given)) {
      calls.push({ name: found.name, arguments: given });
    }
  }
  return calls;
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

function parsed(text: string): Record<string, any> | null {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/**
 * Notes where the object ends that begins at a brace, behind the brace that closes it, and each within
 * it: with many that nothing closes, a look at each alone would take time by the square.
 */
function findEnds(text: string, start: number, ends: Map<number, number | null>): void {
  const open: number[] = [];
  for (const { 0: mark, index } of text.slice(start).matchAll(/"(?:[^"\\]|\\[^])*(?:"|$)|[{}]/g)) {
    if (mark === "{") ends.set(open[open.push(start + index) - 1], null);
    else if (mark === "}") ends.set(open.pop() as number, start + index + 1);
    if (!open.length) return;
  }
}
