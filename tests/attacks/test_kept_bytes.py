"""What requests leave behind is charged to their user: all of it, wherever it lies."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.gateways import Gateway
from support.instances import failure
from support.programs_read import create_sampler
from support.scheduler_fixtures import Guest
from support.scheduler_fixtures import Server as Scheduler
from support.servers import Server

from inferlet import device
from inferlet.device import Tensor
from pie_control.api import sample
from pie_control.api.binder import queue_of
from pie_py.config.limits import Quota

SAYS = b"async def main(args):\n    return chr(int(args[1])) * int(args[0])\n"
ENDPOINT = "/v1/embeddings"
KINDS = ("bytes of files and batches", "bytes of results")
steps = st.lists(
    st.tuples(
        st.sampled_from(["upload", "name", "batch", "remove", "result"]), st.integers(0, 200_000)
    ),
    min_size=5,
    max_size=25,
)


@pytest.fixture(scope="module")
def kept() -> Iterator[tuple[Path, Any, Any]]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        with (
            Server(folder) as server,
            server.client() as client,
            Gateway(server, folder) as gateway,
            gateway.http() as http,
        ):
            client.upload(SAYS, "says")
            yield folder / "data", client, http


@settings(max_examples=6)
@given(steps)
def test_what_is_on_disk_is_what_is_charged(
    kept: tuple[Path, Any, Any], steps: list[tuple[str, int]]
) -> None:
    folder, client, http = kept
    for kind, number in steps:
        _do(client, http, kind, number)
    until = time.monotonic() + 30
    while True:  # results are written by and by, and batches go on
        [quota] = client.quota()
        has = {each["kind"]: each["has"] for each in quota["kinds"]}
        charged = sum(has[kind] for kind in KINDS)
        found = [path.stat() for name in ("batches", "results") for path in _files(folder / name)]
        size = sum(each.st_blocks * 512 for each in found)
        if abs(size - charged) <= 0.1 * size:
            return
        assert time.monotonic() < until, (size, charged, steps)


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
        case "result":
            made = client.launch("says", [str(number // 8), str(number % 2 * 97)], detached=True)
            client.attach(made.id).result()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


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
