"""Models that are loaded when they are first asked for, by workers of their own."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.child_processes import command_line
from support.servers import EMBEDDED, Server, until

from pie_py.client import InferletFailed, RpcError
from pie_py.client.sync import Client

INSTANT = "benchmarks.instant_worker"
ANSWER = """
from inferlet import Context, Model, Sampler

async def main(args):
    context = Context(Model.load(args[0]))
    context.append([5, 6, 7])
    generator = context.generate(Sampler.argmax(), max_tokens=4, stop=[])
    return str(await generator.collect_tokens())
"""
HOLDER = """
from inferlet import Context, Model, Sampler, session

async def main(args):
    context = Context(Model.load(args[0]))
    context.append([5, 6, 7])
    await context.flush()
    session.send("holds")
    await session.receive()
    generator = context.generate(Sampler.argmax(), max_tokens=4, stop=[])
    return str(await generator.collect_tokens())
"""


def checkpoint(folder: Path, name: str) -> dict[str, Any]:
    shutil.copytree(EMBEDDED, folder / name)
    return {"source": str(folder / name), "on_demand": True, "kv_pages": 256, "host_pages": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With room for one of two models, and a third that is damaged."""
    folder = tmp_path_factory.mktemp("d")
    models = [checkpoint(folder, name) for name in ("one", "two", "damaged")]
    (folder / "damaged" / "config.json").write_text("{")
    with Server(models=models, on_demand={"most": 1, "wait_seconds": 2}) as server:
        yield server


@pytest.fixture(scope="module")
def instant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With room for one of two models, whose workers compute nothing, and start at once."""
    folder = tmp_path_factory.mktemp("i")
    models = [checkpoint(folder, name) for name in ("one", "two")]
    with Server(models=models, on_demand={"most": 1}, worker_module=INSTANT) as server:
        yield server


def workers(server: Server) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    modules = INSTANT, "pie_inference"
    return [one for one in children if any(name in command_line(one) for name in modules)]


def states(client: Client) -> dict[str, str]:
    return {each["name"]: each["state"] for each in client.models(unloaded=True)}


def test_each_is_loaded_when_a_program_asks_and_the_other_goes(instant: Server) -> None:
    with instant.client() as client:
        assert client.models() == []
        assert states(client) == {"one": "unloaded", "two": "unloaded"}
        assert not workers(instant)
        program = client.upload(ANSWER.encode(), "answer")
        asked = client.launch(program, ["one"])
        text = asked.result()
        assert "waits for the model one" in str(client.logs(asked.id)["lines"])
        assert states(client)["one"] == "loaded"
        assert client.launch(program, ["two"]).result() == text
        assert (states(client)["one"], states(client)["two"]) == ("unloaded", "loaded")
        assert len(workers(instant)) == 1


def test_a_program_that_holds_pages_keeps_its_model(instant: Server) -> None:
    with instant.client() as client, instant.client() as other:
        program, holder = (client.upload(c.encode(), "p") for c in (ANSWER, HOLDER))
        held = client.launch(holder, ["one"])
        assert held.receive() == "holds"
        with pytest.raises(RpcError, match="busy: model 'one' is in use"):
            client.unload_model("one")
        waits = other.launch(program, ["two"])
        until(lambda: "waits for memory" in str(client.server_info()["doing"]), 300)
        assert states(client)["one"] == "loaded"
        client.unload_model("two")
        with pytest.raises(InferletFailed, match="unloaded as it was loaded"):
            waits.result()
        waits = other.launch(program, ["two"])
        held.send("go on")
        assert held.result()
        assert waits.result()
        assert states(client)["one"] == "unloaded"


def test_a_pause_stays_when_the_worker_is_another_one(instant: Server) -> None:
    with instant.client() as client:
        program = client.upload(ANSWER.encode(), "p")
        client.load_model("one")
        client.pause_model("one")
        os.kill(workers(instant)[0].pid, signal.SIGKILL)
        until(lambda: states(client)["one"] == "unloaded", 300)
        asked = client.launch(program, ["one"])
        until(lambda: states(client)["one"] == "loaded", 300)
        with pytest.raises(TimeoutError):
            asked.result(timeout=0.5)
        client.resume_model("one")
        assert asked.result()


@pytest.mark.nightly
def test_a_damaged_one_fails_for_who_asked_alone(server: Server) -> None:
    with server.client() as client:
        program, holder = (client.upload(c.encode(), "p") for c in (ANSWER, HOLDER))
        failed = client.launch(program, ["damaged"])
        with pytest.raises(InferletFailed, match=r"failed-dependency: model 'damaged' cannot be"):
            failed.result()
        held = client.launch(holder, ["one"])
        assert held.receive() == "holds"
        with pytest.raises(RpcError, match=r"out-of-resources: .*1 are loaded.*in use are one"):
            client.load_model("damaged")
        held.send("go on")
        assert held.result()
        with pytest.raises(RpcError, match=r"failed-dependency: .*config\.json"):
            client.load_model("damaged")
        assert client.launch(program, ["one"]).result()


def test_a_worker_that_is_killed_as_it_loads_or_serves(server: Server) -> None:
    with server.client() as client, server.client() as other:
        program, holder = (client.upload(c.encode(), "p") for c in (ANSWER, HOLDER))
        for loaded in client.models():
            client.unload_model(loaded["name"])
        assert not workers(server)
        asked = client.launch(program, ["one"])
        until(lambda: workers(server), 300)
        os.kill(workers(server)[0].pid, signal.SIGKILL)
        with pytest.raises(InferletFailed, match=r"failed-dependency: .*status -9 before"):
            asked.result()
        held = client.launch(holder, ["one"])
        assert held.receive() == "holds"
        os.kill(workers(server)[0].pid, signal.SIGKILL)
        with pytest.raises(InferletFailed, match="worker-lost: the inference worker of one"):
            held.result()
        assert other.launch(program, ["one"]).result()


@pytest.mark.nightly
def test_an_idle_one_goes_and_operators_say_when(short_folder: Path) -> None:
    models = [{"source": str(EMBEDDED)}, checkpoint(short_folder, "one")]
    with (
        Server(
            short_folder, models=models, on_demand={"idle_seconds": 0.3}, worker_module=INSTANT
        ) as server,
        server.client() as client,
    ):
        client.load_model("one", keep=1e6)
        assert [each["name"] for each in client.models()] == ["pie-tiny", "one"]
        program = client.upload(ANSWER.encode(), "p")
        assert client.launch(program, ["one"]).result()
        assert len(workers(server)) == 2
        client.unload_model("one")
        assert len(workers(server)) == 1
        client.load_model("one")
        until(lambda: states(client)["one"] == "unloaded", 300)
        # The model that serves from the start is nobody's to unload.
        with pytest.raises(RpcError, match="unknown-model"):
            client.unload_model("pie-tiny")
        assert client.launch(program, ["pie-tiny"]).result()


def test_memory_is_a_bound(short_folder: Path) -> None:
    models = [checkpoint(short_folder, name) for name in ("one", "two")]
    with (
        Server(short_folder, models=models, on_demand={"memory": 500 << 20}) as server,
        server.client() as client,
    ):
        client.load_model("one")
        client.load_model("two")
        assert (states(client)["one"], states(client)["two"]) == ("unloaded", "loaded")
    with (
        Server(short_folder, models=models, on_demand={"memory": 50 << 20}) as server,
        server.client() as client,
        pytest.raises(RpcError, match=r"out-of-resources: .* of on_demand\.memory's 52,428,800"),
    ):
        client.load_model("one")
