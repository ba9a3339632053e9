"""MCP commands run without a shell: what is in their arguments is text."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from pie_control.api.mcp.stdio import stdio_transport
from pie_py.config.mcp import McpServerConfig

TELLS = """
import json, os, sys
with open(sys.argv[1] + ".new", "w") as file:
    json.dump(sys.argv[2:], file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""


async def test_arguments_reach_a_command_as_they_are(tmp_path: Path) -> None:
    told, trace = tmp_path / "told", tmp_path / "trace"
    tricks = [f"; touch {trace}", f"$(touch {trace})", f"`touch {trace}`", f"| tee {trace}", "*"]
    config = McpServerConfig(
        command=sys.executable, args=("-c", TELLS, str(told), *tricks), folder=tmp_path
    )

    with trio.fail_after(60):
        async with stdio_transport("tricks", config, lambda: None, lambda reason: None, bool):
            while not told.exists():
                await trio.sleep(0.02)
    assert json.loads(told.read_text()) == tricks
    assert not trace.exists()


async def test_a_command_line_is_no_command() -> None:
    config = McpServerConfig(command=f"{sys.executable} -c pass; true")
    with pytest.raises(FileNotFoundError):
        async with stdio_transport("line", config, lambda: None, lambda reason: None, bool):
            raise AssertionError("a shell has run it")
