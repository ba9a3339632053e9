"""Lists the tools of the server's MCP servers, or calls one of them.

    pie-py run examples/mcp_tools.py
    pie-py run examples/mcp_tools.py -- calendar find_events '{"day": "2026-11-21"}'

The operator registers MCP servers in the server's configuration:

    [mcp.servers.calendar]
    command = "calendar-mcp"
"""

import json

from inferlet import PieError, mcp, session


async def show(server: str) -> None:
    """Sends what a server offers."""
    try:
        tools = await mcp.list_tools(server)
    except PieError as error:
        session.send(f"{server}: {error}\n")
        return
    for tool in tools:
        arguments = ", ".join(tool.input_schema.get("properties", {}))
        session.send(f"{server} {tool.name}({arguments}): {tool.description or ''}\n")


async def main(args: list[str]) -> str:
    """Runs the inferlet."""
    match args:
        case []:
            for server in mcp.servers():
                await show(server)
            return ""
        case [server, tool]:
            result = await mcp.call_tool(server, tool)
        case [server, tool, arguments]:
            result = await mcp.call_tool(server, tool, json.loads(arguments))
        case _:
            raise SystemExit("usage: mcp_tools.py [SERVER TOOL [ARGUMENTS]]")
    if result.is_error:
        raise RuntimeError(result.text)
    return result.text
