"""Instances that launch instances."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.control_programs import BOTH, LANGUAGES, upload
from support.servers import Server, until

from pie_py.client.errors import InferletFailed
from pie_py.client.sync import Client
from pie_py.testing.script import replaying


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected
        until(lambda: connected.instances() == [])


@pytest.mark.parametrize(("parent", "child"), BOTH)
def test_a_child_s_result_and_failure(client: Client, parent: str, child: str) -> None:
    program, of_child = upload(client, parent), upload(client, child)

    def run(*args: str) -> str:
        return client.launch(program, ["run", *args]).result()

    assert run(of_child, "echo", "ä", "") == "ä "
    assert run(of_child, "fail", "not-found: my own words") == (
        "failed-dependency|not-found: my own words"
    )
    assert run(of_child, "run", of_child, "fail", "deep") == "failed-dependency|deep"
    assert run("no-such-program").startswith("not-found|")


@pytest.mark.parametrize(("parent", "child"), BOTH)
def test_parent_and_child_talk(client: Client, parent: str, child: str) -> None:
    talk = client.launch(upload(client, parent), ["talk", upload(client, child)])
    assert talk.result() == "ONE TWO bye"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_child_that_is_given_up_is_killed(client: Client, language: str) -> None:
    program = upload(client, language)
    child = client.launch(program, ["give-up", program]).result()
    (ended,) = (i for i in client.instances(ended=True) if i["id"] == child)
    assert ended["state"] == "killed"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_child_that_somebody_else_ends(client: Client, language: str) -> None:
    program = upload(client, language)
    family = client.launch(program, ["family", program, "3"])
    assert family.receive() == "all there"
    child = next(i["id"] for i in client.instances() if i["id"] != family.id)
    client.kill(child)
    assert family.result() == "one has ended"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_hundred_children_end_with_their_parent(client: Client, language: str) -> None:
    program = upload(client, language)
    family = client.launch(program, ["family", program, "100"])
    assert family.receive() == "all there"
    assert len(client.instances()) == 101
    client.kill(family.id)
    assert client.instances() == []
    assert client.launch(program, ["echo", "alive"]).result() == "alive"


@pytest.mark.parametrize("language", LANGUAGES)
def test_children_end_with_a_parent_that_returns(client: Client, language: str) -> None:
    program = upload(client, language)
    assert client.launch(program, ["burst", program, "5"]).result() == "5"
    until(lambda: client.instances() == [])


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_a_child_says_to_nobody_does_not_block_it(client: Client, language: str) -> None:
    program = upload(client, language)
    assert client.launch(program, ["run", program, "chatter"]).result() == "said it all"


@pytest.mark.parametrize("language", LANGUAGES)
def test_children_of_children_end_somewhere(client: Client, language: str) -> None:
    program = upload(client, language)
    assert client.launch(program, ["nest", program, "0"]).result() == "8 limit-exceeded"


def test_limits_of_children_and_of_the_server(short_folder: Path) -> None:
    settings = {**replaying(short_folder), "limits": {"children": 3}}
    with Server(short_folder, **settings, max_instances=4) as server, server.client() as client:
        for language in LANGUAGES:
            program = upload(client, language)
            # Not one more, however fast: those that are being started count.
            assert client.launch(program, ["burst", program, "10"]).result() == "3 limit-exceeded"
            until(lambda: client.instances() == [])
            # The server's limit is the child's error: a chain of four. A refused child is over.
            for _ in range(3):
                assert client.launch(program, ["nest", program, "0"]).result() == "3 limit-exceeded"
                until(lambda: client.instances() == [])


def test_a_child_whose_program_does_not_start(client: Client) -> None:
    source = b"import no_such_module\nasync def main(args):\n    return ''\n"
    broken = client.upload(source, name="broken")
    told = client.launch(upload(client, "python"), ["run", broken]).result()
    assert told.startswith("failed-dependency|")
    assert "no_such_module" in told
    with pytest.raises(InferletFailed, match="no_such_module"):
        client.launch(broken).result()


def test_a_child_that_is_given_up_before_it_has_started(client: Client) -> None:
    source = b"""
import asyncio
from inferlet import PieError, raw, runtime

async def main(args):
    for _ in range(5):
        raw.cancel(raw.launch(args[0], ["family", args[0], "0"]))
    try:
        await runtime.launch(args[0], "x" * 600_000, "y" * 600_000)
    except PieError as error:
        assert error.code == "limit-exceeded", error
    else:
        raise AssertionError
    await asyncio.sleep(0.2)
    return "given up"
"""
    parent = client.upload(source, name="changes_its_mind")
    launched = client.launch(parent, [upload(client, "python")])
    assert launched.result() == "given up"
    children = [i for i in client.instances(ended=True) if i["parent"] == launched.id]
    assert {i["state"] for i in children} <= {"killed"}
    assert all(i["reason"] == "killed: its parent gave it up" for i in children)
    # None is made or has a turn, but for one whose parent lost the processor between its calls.
    assert sum(i["cpu_ms"] > 0 for i in children) < 5
