"""MCP as in Pie 0.4: answers are the protocol's JSON, and calls wait with the whole inferlet."""

from __future__ import annotations

import json
from typing import Any

from inferlet import raw
from inferlet.mcp import servers as available_servers

__all__ = ["McpSession", "available_servers", "connect"]

_KEYS = {"input_schema": "inputSchema", "output_schema": "outputSchema"}


def connect(server_name: str) -> McpSession:
    """The tools of a server; it is started with the first call."""
    return McpSession(server_name)


class McpSession:
    """A server. Its calls raise PieError as those of `inferlet.mcp`."""

    def __init__(self, server: str) -> None:
        self._server = server

    def list_tools(self) -> str:
        """The result of `tools/list`."""
        tools: list[dict[str, Any]] = _waited(raw.mcp_list_tools(self._server))
        known = ({_KEYS.get(k, k): v for k, v in tool.items() if v is not None} for tool in tools)
        return json.dumps({"tools": list(known)})

    def call_tool(self, name: str, args: str) -> str:
        """The result of `tools/call`; `args` is a JSON object."""
        answer: dict[str, Any] = _waited(raw.mcp_call_tool(self._server, name, args))
        found = {"content": answer["content"], "isError": answer["is_error"]}
        if answer["structured"] is not None:
            found["structuredContent"] = answer["structured"]
        return json.dumps(found)

    def __enter__(self) -> McpSession:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""


def _waited(future: int) -> Any:
    raw.wait([future])
    return json.loads(raw.take_text(future))
