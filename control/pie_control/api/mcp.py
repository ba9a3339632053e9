"""Trait `mcp`: tools of the MCP servers that the operator registered."""

from __future__ import annotations

from typing import Any

from pie_control.instances.instance import Instance
from pie_control.wasm import STRING, STRING_LIST, U32, HostFunction


def mcp_servers(instance: Instance) -> list[str]:
    """Names of the servers that the user may use."""
    return instance.host.mcp.names(instance.user)


def mcp_list_tools(instance: Instance, server: str) -> int:
    """Opens a future of a server's tools."""
    return instance.host.mcp.list_tools(instance, server)


def mcp_call_tool(instance: Instance, server: str, tool: str, arguments: str) -> int:
    """Calls a tool and opens a future of its answer."""
    return instance.host.mcp.call_tool(instance, server, tool, arguments)


def _function(name: str, call: Any, *params: Any, returns: Any, fails: bool = True) -> HostFunction:
    return HostFunction("mcp", name, params, returns, fails, call)


FUNCTIONS: tuple[HostFunction, ...] = (
    _function("mcp-servers", mcp_servers, returns=STRING_LIST, fails=False),
    _function("mcp-list-tools", mcp_list_tools, STRING, returns=U32),
    _function("mcp-call-tool", mcp_call_tool, STRING, STRING, STRING, returns=U32),
)
