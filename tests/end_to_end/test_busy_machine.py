"""On a busy machine limits of seconds count the work that they limit, and no start of ours."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
from support.servers import Server

PROGRAM = """
import asyncio
from inferlet import Grammar, Model, runtime, session

async def main() -> bool:
    model = Model.load()
    session.send("ready")
    await session.receive()
    grammar = asyncio.ensure_future(Grammar.regex("[0-9]").matcher(model))
    await runtime.sleep(0.5)
    session.send("it waits")
    return (await grammar).is_accepting
"""


def test_the_first_grammar_of_a_server(tmp_path: Path) -> None:
    """The processes that compile it get no CPU for longer than a grammar may take."""
    program = tmp_path / "first.py"
    program.write_text(PROGRAM)
    with Server(tmp_path, grammar={"compile_seconds": 0.05}) as server, server.client() as client:
        instance = client.launch(client.upload(program), [])
        assert instance.receive() == "ready"
        confined = [
            child
            for child in psutil.Process(server.process.pid).children(recursive=True)
            if any("confined.process" in word for word in child.cmdline())
        ]
        assert confined
        for each in confined:
            os.kill(each.pid, signal.SIGSTOP)
        instance.send("go")
        assert instance.receive() == "it waits"
        for each in confined:
            os.kill(each.pid, signal.SIGCONT)
        assert json.loads(instance.result()) is False
