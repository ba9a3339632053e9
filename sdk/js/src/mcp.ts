/** Tools of MCP (Model Context Protocol) servers that the operator, or a client of yours, registered. */

import { mcpCallTool, mcpListTools } from "./awaited.ts";

/** A server's description of one of its tools; the schemas are JSON Schemas. */
export interface Tool {
  name: string;
  title: string | null;
  description: string | null;
  inputSchema: Record<string, unknown>;
  outputSchema: Record<string, unknown> | null;
}

/** A tool's answer. */
export interface ToolResult {
  /** MCP content blocks: `{ type: "text", text: ... }` and others. */
  content: Record<string, any>[];
  /** The tool itself says that it failed; the content says why. */
  isError: boolean;
  /** The value of the tool's output schema, or null. */
  structured: any;
  /** The text blocks, one after the other. */
  text: string;
}

export { mcpServers as servers } from "./raw.ts";

/** The tools of a server. Throws PieError `not-found`, `remote-failed`, `timed-out`. */
export async function listTools(server: string): Promise<Tool[]> {
  const listed = JSON.parse(await mcpListTools(server));
  return listed.map(({ input_schema: inputSchema, output_schema: outputSchema, ...tool }: any) => ({
    ...tool,
    inputSchema,
    outputSchema,
  }));
}

/** Calls a tool. A tool's own failure is an answer, with `isError`. */
export async function callTool(server: string, tool: string, args: object = {}): Promise<ToolResult> {
  const answer = JSON.parse(await mcpCallTool(server, tool, JSON.stringify(args)));
  const texts = answer.content.filter((block: any) => block.type === "text");
  return {
    content: answer.content,
    isError: answer.is_error,
    structured: answer.structured,
    text: texts.map((block: any) => block.text).join("\n"),
  };
}
