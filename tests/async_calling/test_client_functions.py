"""What the client tells of its functions, and files as arguments of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import anyio
import click
import pytest
from click.testing import CliRunner
from support.scripts import forced_program, script, simulated
from support.servers import Server

from pie_py.cli import main
from pie_py.cli.arguments import with_files
from pie_py.client import Client, Function, ServerUnreachable
from pie_py.client.functions import FunctionHost


async def find_trains(
    start: str, end: str, kind: Literal["fast", "slow"] = "fast", stops: list[int] | None = None
) -> list[str]:
    """Trains between two towns."""
    return [start, end, kind, str(stops)]


def test_a_function_s_specification() -> None:
    found = Function(find_trains, seconds=0.4, timeout=2.0).specification()
    assert (found["seconds"], found["timeout"]) == (0.4, 2.0)
    function = found["function"]
    assert function["name"] == "find_trains"
    assert function["description"] == "Trains between two towns."
    parameters = function["parameters"]
    assert list(parameters["properties"]) == ["start", "end", "kind", "stops"]
    assert parameters["properties"]["start"] == {"type": "string"}
    assert parameters["properties"]["kind"]["enum"] == ["fast", "slow"]
    assert parameters["required"] == ["start", "end"]

    def takes_anything(*words: str) -> None:
        pass

    with pytest.raises(TypeError, match=r"takes \*words"):
        Function(takes_anything).specification()


def test_files_among_arguments(tmp_path: Path) -> None:
    file = tmp_path / "ä.json"
    file.write_text("[ä]", encoding="utf-8")
    other = ["--tools", "a@b", "@@home", "@nothing", "@", "@\0", "@" + "x" * 9999, ""]
    assert with_files([f"@{file}", *other]) == [
        *("[ä]", "--tools", "a@b", "@home", "@nothing", "@", "@\0", "@" + "x" * 9999, "")
    ]
    file.write_bytes(b"\xff")
    with pytest.raises(click.UsageError, match="is not a text in UTF-8"):
        with_files([f"@{file}"])


def test_the_command_line_runs_it_with_a_tools_file(calling_server: Server, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([simulated("look", 0.01, "found")]))
    with calling_server.client() as client:
        client.upload(forced_program(), name="forced")
    given = ["run", "forced", "--endpoint", calling_server.endpoint]
    options = ["--request", "look.", "--tools", f"@{tools}", "--script", script("a: look()")]
    shown = CliRunner().invoke(main, [*given, *options])
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[:3] == ["Request:", "look.", "Functions, and how long they take: look (0.01 s)"]
    told = [line.partition(" s  ")[2] for line in lines if line.startswith("  ")]
    assert [line for line in told if "look" in line or "found" in line] == [
        "-> a: look()",
        '<- a: "found"',
    ]
    assert lines[-2] == "Done."
    assert lines[-1].startswith(tuple("0123456789")), lines[-1]
    for mode in ("sync", "sync_parallel"):
        shown = CliRunner().invoke(main, [*given, "--mode", mode, *options])
        assert shown.exit_code == 0, shown.output
        assert "\nDone.\n" in shown.output


ASKS = b"""
import json
from inferlet import session

async def main(args):
    for _ in range(2):
        session.send(json.dumps({"type": "execute", "number": 1, "name": "act", "arguments": {}}))
    answers = [json.loads(await session.receive())["value"] for _ in range(2)]
    return json.dumps({"answers": answers})
"""


async def act() -> str:
    await anyio.sleep(0.1)
    return "done"


async def test_two_calls_of_one_number_are_both_answered(calling_server: Server) -> None:
    async with Client(calling_server.endpoint) as client:
        found = await client.answer("act", [act], program=ASKS)
    assert found["answers"] == ["done", "done"]


HEARS = b"""
from inferlet import session

async def main(args):
    return await session.receive()
"""


async def test_a_call_that_is_cancelled_with_the_next_message_does_not_begin(
    calling_server: Server,
) -> None:
    async with Client(calling_server.endpoint) as client, anyio.create_task_group() as tasks:
        instance = await client.launch(await client.upload(HEARS, "hears"), [])
        begun: list[int] = []

        async def act(number: int) -> None:
            begun.append(number)

        host = FunctionHost(instance, {"act": act})
        for number, kind in ((0, "execute"), (0, "cancel"), (1, "execute")):
            given = {"type": kind, "number": number}
            host.take({**given, "name": "act", "arguments": {"number": number}}, tasks)
        assert json.loads(await instance.result())["number"] == 1
    assert begun == [1]


async def test_a_server_that_is_lost_in_the_middle_is_told_as_such() -> None:
    with Server(replays=[]) as server:

        async def act() -> None:
            server.process.kill()

        async with Client(server.endpoint, patience=1.0) as client:
            with pytest.raises(ServerUnreachable, match="has not come back"):
                await client.answer("act", [act], program=ASKS)
