"""Interface `mcp`: tools of MCP servers."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import mcp as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_text


def mcp_servers() -> list[str]:
    """Names of the servers that this user may use."""
    answer: list[str] = interface.mcp_servers()
    return answer


def mcp_list_tools(server: str) -> int:
    """A future of a server's tools, a JSON list of `{"name", "title", "description", "input_schema",
    "output_schema"}`. Consume it with `take_text`.
    Errors: `not-found`, `limit-exceeded`; of the future: `remote-failed` (the server did not start,
    died, or refused), `timed-out`, `limit-exceeded` (the answer is too large).
    """
    try:
        answer: int = interface.mcp_list_tools(as_text(server))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def mcp_call_tool(server: str, tool: str, arguments: str) -> int:
    """A future of a tool's answer to `arguments`, a JSON object: a JSON object with `content` (a
    list of MCP content blocks), `is_error` (the tool's own failure), and `structured` (what the
    tool's output schema describes, or null). Consume it with `take_text`.
    Errors: `not-found`, `invalid-argument`, `limit-exceeded`; of the future: as `mcp_list_tools`.
    """
    try:
        answer: int = interface.mcp_call_tool(as_text(server), as_text(tool), as_text(arguments))
    except Err as error:
        raise PieError(error.value) from None
    return answer
