"""Trait `mcp`: tools of the MCP servers that the operator registered."""

from __future__ import annotations

from pie_control.api.binder import implement
from pie_control.instances.instance import Instance
from pie_control.mcp import McpServers
from pie_control.wasm import HostFunction


class McpCalls:
    """Calls of tools, for all instances."""

    def __init__(self, mcp: McpServers) -> None:
        self._mcp = mcp

    def functions(self) -> tuple[HostFunction, ...]:
        """The interface's functions."""
        return implement("mcp", self.mcp_servers, self.mcp_list_tools, self.mcp_call_tool)

    def mcp_servers(self, instance: Instance) -> list[str]:
        """Names of the servers that the user may use."""
        return self._mcp.names(instance.user)

    def mcp_list_tools(self, instance: Instance, server: str) -> int:
        """Opens a future of a server's tools."""
        return self._mcp.list_tools(instance, server)

    def mcp_call_tool(self, instance: Instance, server: str, tool: str, arguments: str) -> int:
        """Calls a tool and opens a future of its answer."""
        return self._mcp.call_tool(instance, server, tool, arguments)
