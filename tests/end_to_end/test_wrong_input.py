"""Wrong input at every door: a clear error, and nothing else breaks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from support.rust_components import rust_component
from support.servers import Server, until

from pie_py.cli import main
from pie_py.client.errors import InferletFailed
from pie_py.client.sync import Client
from pie_py.testing.script import replaying

PROMPT = [5, 6, 7, 8]

LIMITS = {"cpu_seconds": 1.0, "detached_seconds": 1.0, "memory": 64 << 20}


@pytest.fixture(scope="module")
def strict(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with small limits and few pages."""

    models = [{"source": str(checkpoint), "name": "test", "kv_pages": 64}]
    # Here it is first come, first served: nobody lends pages.
    settings = {"policy": "preserve"}
    with Server(models=models, limits=LIMITS, interception=settings) as server:
        yield server


@pytest.fixture
def client(strict: Server, guests: Path) -> Iterator[Client]:
    """A client; when the test is over, the server still answers as before."""
    with strict.client() as connected:
        program = connected.upload(guests / "greedy.py")
        expected = connected.launch(program, [json.dumps(PROMPT), "8"]).result()
        yield connected
        assert connected.launch(program, [json.dumps(PROMPT), "8"]).result() == expected
        stats = connected.stats()["test"]
        assert stats["kv_pages_free"] == stats["kv_pages"]


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("trap", "trap: "),
        ("recurse", "trap: .*stack"),
        ("allocate", "memory"),
        ("spin", "limit-exceeded: .*CPU"),
        ("flood", "limit-exceeded: .*CPU"),
        ("panic", "trap: "),
    ],
)
def test_programs_that_misbehave(client: Client, mode: str, told: str) -> None:
    guests = client.upload(rust_component("guests"))
    with pytest.raises(InferletFailed, match=told):
        client.launch(guests, [mode]).result()


def test_a_program_that_forgets_to_free_does_not_starve_the_next(client: Client) -> None:
    guests = client.upload(rust_component("guests"))
    for _ in range(10):
        client.launch(guests, ["leak", "60"]).result()  # of 64


@pytest.mark.nightly
def test_a_client_that_vanishes(strict: Server, client: Client) -> None:
    guests = client.upload(rust_component("guests"))
    child = os.fork()
    if child == 0:  # a client process that is killed while its instance runs
        with strict.client() as other:
            other.launch(guests, ["hold-pages", "10"]).receive()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(client.instances()) == 1
    until(lambda: client.instances() == [])


def test_the_worker_is_killed(strict: Server, client: Client, guests: Path) -> None:
    program = client.upload(guests / "greedy.py")
    idle = client.launch(client.upload(rust_component("guests")), ["sleep", "4000"])
    worker, before = strict.worker, client.stats()["test"]["plans"]
    busy = client.launch(program, [json.dumps(PROMPT), "800"])
    while client.stats()["test"]["plans"] < before + 20:
        time.sleep(0.01)
    worker.kill()
    with pytest.raises(InferletFailed, match="worker-lost"):
        busy.result()
    told = CliRunner().invoke(main, ["models", "--endpoint", strict.endpoint])
    assert "no model is served at the moment" in told.output
    idle.result()  # it holds nothing of the worker
    # The next launch waits for the new worker.
    assert client.launch(program, [json.dumps(PROMPT), "8"]).result()


# Starting


def failure(folder: Path, **settings: object) -> str:
    server = Server(folder, **settings)
    try:
        assert server.error is not None
        server.process.wait(20)
        assert server.process.returncode == 1
        return server.error
    finally:
        server.process.kill()


def test_a_checkpoint_that_is_corrupted(short_folder: Path, checkpoint: Path) -> None:
    folder = short_folder / "model"
    shutil.copytree(checkpoint, folder)
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:5000])
    error = failure(short_folder, models=[{"source": str(folder)}])
    assert "model.safetensors" in error


def test_an_endpoint_in_use_and_no_process_that_is_left(short_folder: Path) -> None:
    settings = replaying(short_folder)
    (short_folder / "first").mkdir()
    (short_folder / "second").mkdir()
    with Server(short_folder / "first", **settings, endpoint="tcp://127.0.0.1:0") as first:
        taken = failure(short_folder / "second", **settings, endpoint=first.endpoint)
        assert first.endpoint.removeprefix("tcp://") in taken
        with first.client() as client:
            assert client.models()
        children = psutil.Process(first.process.pid).children(recursive=True)
        assert children
        assert first.stop() == 0
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
