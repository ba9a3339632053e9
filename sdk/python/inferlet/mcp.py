"""Tools of MCP (Model Context Protocol) servers that the operator, or a client of yours,
registered.

::

    for tool in await mcp.list_tools("calendar"):
        print(tool.name, tool.description)
    result = await mcp.call_tool("calendar", "find_events", {"day": "2026-11-21"})
    print(result.text)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferlet._generated.awaited import mcp_call_tool, mcp_list_tools
from inferlet.raw import mcp_servers as servers

__all__ = ["Tool", "ToolResult", "call_tool", "list_tools", "servers"]


@dataclass(frozen=True)
class Tool:
    """A tool as its server describes it; the schemas are JSON Schemas."""

    name: str
    title: str | None
    description: str | None
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None


@dataclass(frozen=True)
class ToolResult:
    """A tool's answer."""

    content: list[dict[str, Any]]  # MCP content blocks: {"type": "text", "text": ...} and others
    is_error: bool  # the tool itself says that it failed; the content says why
    structured: Any  # what the tool's output schema describes, or None

    @property
    def text(self) -> str:
        """The text blocks, one after the other."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")


async def list_tools(server: str) -> list[Tool]:
    """The tools of a server.

    Raises:
        PieError: `not-found`, `remote-failed` (the server did not start, died or refused),
            `timed-out`, `limit-exceeded`.
    """
    return [Tool(**tool) for tool in json.loads(await mcp_list_tools(server))]


async def call_tool(
    server: str, tool: str, arguments: Mapping[str, Any] | None = None
) -> ToolResult:
    """Calls a tool. If the calling task is cancelled, so is the call.

    Raises:
        PieError: as `list_tools`; `invalid-argument` (no such tool). A tool's own failure is an
            answer, with `is_error`.
    """
    given = json.dumps(dict(arguments or {}), allow_nan=False)
    return ToolResult(**json.loads(await mcp_call_tool(server, tool, given)))
