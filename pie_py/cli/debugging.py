"""`breakpoint()` in a Python program: pdb there, the terminal here."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import anyio.to_thread

from pie_py.build.modules import read_modules
from pie_py.client import Instance
from pie_py.wire.modules import pack

DEBUGGER = Path(__file__).parent / "guests" / "pie_debugger.py"
MARK = b"\0pdb "


def with_debugger(path: Path) -> bytes:
    """A Python program, with the debugger if it has a `breakpoint()`; raises as `read_program`."""
    modules = read_modules(path)
    if any(_breaks(source) for source in modules.values()):
        modules[DEBUGGER.name] = DEBUGGER.read_bytes()
    return pack(modules)


async def converse(instance: Instance, message: bytes) -> None:
    """Does what a message of the debugger wants: shows a text, or sends the user's next line."""
    kind, _, text = message.removeprefix(MARK).partition(b" ")
    if kind == b"shows":
        print(text.decode(), end="", file=sys.stderr, flush=True)
        return
    line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    await instance.send(line.encode())


def _breaks(source: bytes) -> bool:
    """Whether a module calls `breakpoint`."""
    if b"breakpoint" not in source:
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False  # the server says what is wrong with it
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(one, ast.Name) and one.id == "breakpoint" for one in calls)
