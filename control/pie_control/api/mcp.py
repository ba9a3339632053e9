"""Trait `mcp`: tools of the MCP servers that the operator registered."""

from __future__ import annotations

from pie_control.api.binder import implement
from pie_control.instances.instance import Instance


def mcp_servers(instance: Instance) -> list[str]:
    """Names of the servers that the user may use."""
    return instance.host.mcp.names(instance.user)


def mcp_list_tools(instance: Instance, server: str) -> int:
    """Opens a future of a server's tools."""
    return instance.host.mcp.list_tools(instance, server)


def mcp_call_tool(instance: Instance, server: str, tool: str, arguments: str) -> int:
    """Calls a tool and opens a future of its answer."""
    return instance.host.mcp.call_tool(instance, server, tool, arguments)


FUNCTIONS = implement("mcp", mcp_servers, mcp_list_tools, mcp_call_tool)
