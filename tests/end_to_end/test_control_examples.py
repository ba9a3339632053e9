"""The examples of messaging, store and children, as their first lines say to run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.servers import Server

from pie_py.client.sync import Client

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(client: Client, name: str, *args: str) -> str:
    return client.launch(client.upload(EXAMPLES / f"{name}.py"), args).result()


def test_work_queue(client: Client) -> None:
    program = client.upload(EXAMPLES / "work_queue.py")
    workers = [client.launch(program, ["work"]) for _ in range(2)]
    for worker in workers:
        assert worker.receive() == "waiting for work\n"
    adder = client.launch(program, ["add", "12"])
    lines = [adder.receive() for _ in range(12)]
    squares = {int(str(line).partition(" = ")[2]) for line in lines}
    assert squares == {n * n for n in range(12)}
    assert adder.result() == "2 workers went home\n"
    assert [worker.result() for worker in workers] == ["go home", "go home"]


def test_notes(client: Client) -> None:
    assert run(client, "notes", "buy", "milk") == "1. buy milk"
    assert run(client, "notes", "call Ada") == "1. buy milk\n2. call Ada"
    assert run(client, "notes") == "1. buy milk\n2. call Ada"


def test_children(client: Client) -> None:
    client.upload(EXAMPLES / "hello.py")
    assert run(client, "children", "hello", "Ada", "Alan") == "Hello, Ada!\nHello, Alan!"
    failed = run(client, "children", "no-such-program", "x")
    assert failed.startswith("failed: no program is called 'no-such-program'")


def test_chat(server: Server) -> None:
    """As the terminal has it: two turns, then an empty line."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "chat_client.py"],
        input="Hello\nGo on\n\n",
        env={**os.environ, "PIE_PY_ENDPOINT": server.endpoint},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("\n> 2 turns\n"), done.stderr
