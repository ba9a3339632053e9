"""What requests leave behind is charged to their user: all of it, wherever it lies."""

from __future__ import annotations

import gc
import random
import sqlite3
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings
from support.gateways import Gateway
from support.instances import failure, is_ready, take_text
from support.programs_read import create_sampler
from support.rig import Rig, messaging, runtime
from support.scheduler_fixtures import Guest
from support.scheduler_fixtures import Server as Scheduler
from support.servers import Server

from inferlet import device
from inferlet.device import Tensor
from pie_control.api import sample, session
from pie_control.api.binder import queue_of
from pie_control.instances.instance import InstanceState
from pie_gateway.openai.stored import Responses, Stored
from pie_py.config.limits import Quota

SAYS = b"async def main(args):\n    return chr(int(args[1])) * int(args[0])\n"
STORES = b"""
from inferlet import store
async def main(args):
    await store.set(args[0], b"v" * int(args[1]))
"""
ENDPOINT = "/v1/embeddings"
ON_DISK = (
    *("bytes of files and batches", "bytes of results", "bytes of programs"),
    *("bytes of MCP servers", "bytes of journals", "bytes of the store"),
)
EMPTY_STORE = 5 * 4096  # what its tables take, of all users
FOLDERS = ("batches", "results", "programs/blobs", "mcp", "journals")
DOES = ("upload", "name", "batch", "remove", "result", "store", "mcp", "program", "durable")
steps = st.lists(st.tuples(st.sampled_from(DOES), st.integers(0, 200_000)), min_size=5, max_size=25)


@pytest.fixture(scope="module")
def kept() -> Iterator[tuple[Path, Any, Any]]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        with (
            Server(folder, http={"allow": ["mcp.example.com"]}) as server,
            server.client() as client,
            Gateway(server, folder) as gateway,
            gateway.http() as http,
        ):
            client.upload(SAYS, "says")
            client.upload(STORES, "stores")
            yield folder / "data", client, http


def charged(client: Any) -> dict[str, int]:
    """What the ledger has of the one user, by kind."""
    [quota] = client.quota()
    return {each["kind"]: each["has"] for each in quota["kinds"]}


@settings(max_examples=2)
@given(steps)
def test_what_is_on_disk_is_what_is_charged(
    kept: tuple[Path, Any, Any], steps: list[tuple[str, int]]
) -> None:
    folder, client, http = kept
    for kind, number in steps:
        _do(client, http, kind, number)
    until = time.monotonic() + 30
    while True:  # results are written by and by, and batches go on
        has = charged(client)
        found = [path.stat() for name in FOLDERS for path in _files(folder / name)]
        size = sum(each.st_blocks * 512 for each in found) + _pages(folder / "store.sqlite3")
        size -= EMPTY_STORE
        if abs(size - sum(has[kind] for kind in ON_DISK)) <= 0.1 * size:
            return
        assert time.monotonic() < until, (size, has, steps)


def _pages(path: Path) -> int:
    """Bytes of a database that are in use."""
    with closing(sqlite3.connect(path)) as database:
        ask = ("page_count", "freelist_count", "page_size")
        pages, free, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ask)
    return int((pages - free) * size)


def _do(client: Any, http: Any, kind: str, number: int) -> None:
    files = [each["id"] for each in http.get("/v1/files").json()["data"]]
    match kind:
        case "upload" | "name":
            name = "n" * (number % 256) if kind == "name" else "x"
            content = b"x" * (number if kind == "upload" else 0)
            form = {"file": (name or "x", content)}
            answer = http.post("/v1/files", files=form, data={"purpose": "batch"})
            assert answer.status_code == 200, answer.text
        case "batch" if files:
            asked = {"input_file_id": files[number % len(files)], "endpoint": ENDPOINT}
            metadata = {f"{at}": "v" * 500 for at in range(number % 16)}
            body = {**asked, "completion_window": "24h", "metadata": metadata}
            assert http.post("/v1/batches", json=body).status_code == 200
        case "remove" if files:
            assert http.delete(f"/v1/files/{files[number % len(files)]}").status_code == 200
        case "result" | "durable":
            args = [str(number // 8), str(number % 2 * 97)]
            durable = kind == "durable"
            made = client.launch("says", args, detached=not durable, durable=durable)
            client.attach(made.id).result()
        case "store":
            client.launch("stores", [f"k{number % 9}", f"{number}"]).result()
        case "mcp":
            mine = [each["name"] for each in client.mcp_servers() if each["own"]]
            if f"m{number % 8}" in mine:
                client.unregister_mcp(f"m{number % 8}")
            else:
                headers = {"x-key": "k" * (number % 8000)}
                client.register_mcp(f"m{number % 8}", "https://mcp.example.com/", headers=headers)
        case "program":
            source = SAYS + b"#" * number
            client.upload(source, f"p{number}")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_largest_mcp_servers_take_no_more_than_they_may(kept: tuple[Path, Any, Any]) -> None:
    """Quotes take two bytes each where they are kept."""
    _, client, _ = kept
    for each in client.mcp_servers():
        if each["own"]:
            client.unregister_mcp(each["name"])
    headers = {"x-key": '"' * 32_600}
    for number in range(8):
        client.register_mcp(f"m{number}", "https://mcp.example.com/", headers=headers)
    [quota] = client.quota()
    [kind] = (each for each in quota["kinds"] if each["kind"] == "bytes of MCP servers")
    assert kind["has"] <= kind["may"] < 1.1 * kind["has"]


def test_responses_are_charged_while_they_are_kept(kept: tuple[Path, Any, Any]) -> None:
    _, client, http = kept
    asked = {"model": "pie-tiny", "input": "x " * 1000, "max_output_tokens": 1}
    made = [http.post("/v1/responses", json=asked).json()["id"] for _ in range(3)]
    for name in ("", *made):
        if name:
            assert http.delete(f"/v1/responses/{name}").status_code == 200
            made = made[1:]
        least, until = 2000 * len(made), time.monotonic() + 30
        while not least <= charged(client)["bytes of responses"] <= 3 * least:
            assert time.monotonic() < until


IN_MEMORY = ("bytes of messages", "bytes of work queues", "bytes of ended instances")
ACTS = ("send", "push", "pull", "subscribe", "leave", "tell", "end", "respond", "forget")


@pytest.mark.parametrize("seed", range(3))
def test_what_is_in_memory_is_what_is_charged(seed: int) -> None:
    _in_memory(random.Random(seed))  # what is made once is there then
    tracemalloc.start()
    try:
        has, size = _in_memory(random.Random(seed))
    finally:
        tracemalloc.stop()
    assert abs(size - sum(has.values())) <= 0.1 * size, (size, has)


def _in_memory(chance: random.Random) -> tuple[dict[str, int], int]:
    """What is charged for some acts, and the memory that they take."""
    rig, responses = Rig(), Responses(Path())
    one = rig.launch()
    gc.collect()
    before, _ = tracemalloc.get_traced_memory() if tracemalloc.is_tracing() else (0, 0)
    subscriptions: dict[int, int] = {}
    kept: set[str] = set()
    for _ in range(500):
        act, number = chance.choice(ACTS), chance.randrange(30)
        text = chance.choice("aä漢") * chance.randrange(3000) + chance.choice(["", "😀"])
        name = f"r{number}"
        match act:
            case "send":
                session.send(one, text)
            case "push":
                messaging.push(one, f"{number}", text)
            case "pull":
                future = messaging.pull(one, f"{number}")
                if is_ready(one, future):
                    take_text(one, future)
                else:
                    runtime.cancel(one, future)
            case "subscribe" if number not in subscriptions:
                subscriptions[number] = messaging.subscribe(one, f"{number}" * 100)
            case "leave" if number in subscriptions:
                messaging.unsubscribe(one, subscriptions.pop(number))
            case "tell":
                messaging.broadcast(one, f"{number}" * 100, text)
            case "end":
                rig.registry.end(rig.launch(), InstanceState.FINISHED, text)
            case "respond":
                data = text.encode()
                made = Stored(data, data[::-1], data.upper(), (f"m{number}",))
                responses.keep("ann", name, made)
                kept.add(name)
            case "forget" if name in kept:
                responses.forget("ann", name)
                kept.remove(name)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory() if tracemalloc.is_tracing() else (0, 0)
    quota = trio.run(rig.parts.shares.of_user, "ann")
    has = {each["kind"]: each["has"] for each in quota["kinds"] if each["kind"] in IN_MEMORY}
    return {**has, "responses": responses.bytes_of().get("ann", 0)}, after - before


@device.program
def least(logits: Tensor) -> Tensor:
    return (-logits).argmax()


@device.program
def doubled(logits: Tensor) -> Tensor:
    return (logits + logits).argmax()


def test_device_programs_are_charged_for_what_they_are_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Scheduler(quota=Quota())
    hog = Guest(server, server.launch("mallory"))
    space = queue_of(hog.instance, hog.queue, "sample").space
    charged, made = [], []
    for sampler in (least, least, doubled):
        made.append(create_sampler(hog.instance, hog.queue, sampler().to_json()))
        charged.append(space.samplers.program_bytes)
    assert 0 < charged[0] == charged[1] < charged[2]
    for handle in (made[0], made[2]):
        sample.destroy_sampler(hog.instance, hog.queue, handle)
    server.drain()
    assert space.samplers.program_bytes == charged[0]
    monkeypatch.setattr("pie_control.api.sample.NODE_BYTES", 64 << 20)
    with failure("limit-exceeded", "bytes of device programs"):
        create_sampler(hog.instance, hog.queue, doubled().to_json())
