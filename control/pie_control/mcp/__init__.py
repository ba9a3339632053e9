"""Tools of MCP servers: `servers` has the calls, `registry` knows which user may use which server,
`server` holds one of them alive, `connection` speaks to it by the official SDK, over `stdio` or
`streamable`."""

from pie_control.mcp.servers import McpServers

__all__ = ["McpServers"]
