"""A real MCP server written with the official SDK: `python mcp_server.py [stdio | http PORT]`.

Its tools do what servers do well, and what they do badly.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

server = MCPServer("test")


class Weather(BaseModel):
    """An answer with a schema."""

    place: str
    degrees: float


@server.tool(title="Sum")
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def echo(text: str) -> str:
    """Says the same."""
    return text


@server.tool()
def weather(place: str) -> Weather:
    """Tells the weather."""
    return Weather(place=place, degrees=21.5)


@server.tool("find-way")
def find_way(start: str) -> str:
    """Has a name that is none in Python."""
    return f"from {start}"


@server.tool()
def fail() -> str:
    """Raises."""
    raise ToolError("no such luck")


@server.tool()
async def wait(seconds: float, mark: str = "", begun: str = "") -> str:
    """Waits; writes a file when it begins, and another when it is cancelled."""
    if begun:
        Path(begun).write_text("begun")
    try:
        await anyio.sleep(seconds)
    except BaseException:
        if mark:
            Path(mark).write_text("cancelled")
        raise
    return "waited"


@server.tool()
def hang() -> str:
    """Stops everything."""
    time.sleep(600)
    return ""


@server.tool()
def die() -> str:
    """Ends the process."""
    os._exit(3)


@server.tool()
def large(size: int) -> str:
    """Answers with so many letters."""
    return "x" * size


@server.tool()
def environment(name: str) -> str:
    """A variable of the process's environment."""
    return os.environ.get(name, "nothing")


@server.tool()
def pid() -> int:
    """The process."""
    return os.getpid()


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    elif sys.argv[1:2] == ["noise"]:
        print("this is no JSON-RPC", flush=True)
        server.run("stdio")
    else:
        server.run("stdio")
