"""Tools of MCP servers: the trait `mcp`, the servers, and connections to them."""
