"""Vectors that users upload for their device programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zmq
from click.testing import CliRunner
from safetensors.torch import save_file
from support.servers import Server, until

from inferlet import Context, Model, PieError, device, layers
from pie_control.programs.adapter_check import MOST_VECTOR_BYTES
from pie_py.cli import main
from pie_py.client import RpcError
from pie_py.client.sync import Client
from pie_py.wire.rpc import PROTOCOL, Bye, Hello, Request, encode

pytestmark = pytest.mark.slow
PROMPT = list(range(5, 25))
VECTOR = [((7 * i) % 11 - 5) / 20 for i in range(64)]


async def steered(prompt: list[int], vector: Any) -> list[int] | str:
    within = layers.steer(vector, at=[1], strength=4.0)
    generation = Context(Model.load()).append(prompt).generate(max_tokens=8, stop=[], layers=within)
    try:
        return await generation.collect_tokens()
    except PieError as error:
        return str(error)


async def probed(prompt: list[int]) -> list[float]:
    weights, bias = device.uploaded("probe", "weights"), [0.0, 1.0]
    within = layers.probe(weights, at=[0], bias=bias, prompt=True)
    generation = Context(Model.load()).append(prompt).generate(max_tokens=2, stop=[], layers=within)
    await generation.collect_tokens()
    found: list[float] = (await generation.state())["sums"]
    return found


def kept(client: Client) -> Any:
    kinds = client.quota()[0]["kinds"]
    return next(each["has"] for each in kinds if each["kind"] == "bytes of programs")


def test_they_are_given_by_name_and_count(server: Server, tmp_path: Path) -> None:
    uploaded = device.uploaded("mood", "glad")
    with server.client() as client:
        plain = client.run(steered, PROMPT, [0.0] * 64)
        wanted = client.run(steered, PROMPT, VECTOR)
        assert plain != wanted
        before = kept(client)
        client.upload_tensors("mood", {"glad": np.array(VECTOR, np.float32)})
        assert client.run(steered, PROMPT, uploaded) == wanted
        file = tmp_path / "mood.safetensors"
        for kind in (torch.float16, torch.bfloat16):
            rounded = torch.tensor(VECTOR).to(kind)
            save_file({"glad": rounded}, file)
            told = CliRunner().invoke(main, ["upload", str(file), "--endpoint", server.endpoint])
            assert told.exit_code == 0, told.output
            like = client.run(steered, PROMPT, rounded.float().tolist())
            assert client.run(steered, PROMPT, uploaded) == like
        assert [each["name"] for each in client.programs()].count("mood") == 1
        assert kept(client) > before
        assert "'glum', but glad" in client.run(steered, PROMPT, device.uploaded("mood", "glum"))
        client.unload_adapter("mood")
        assert kept(client) == before
        assert "no program is called 'mood'" in client.run(steered, PROMPT, uploaded)


def test_matrices_and_those_of_a_session(server: Server) -> None:
    weights = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    with server.client() as client:
        with server.client() as other:
            other.upload_tensors("probe", {"weights": weights}, for_session=True)
            sums = client.run(probed, PROMPT)
            assert len(sums) == 2
            assert all(sums)
        until(lambda: "probe" not in [each["name"] for each in client.programs()])


def test_a_session_that_ends_as_it_asks_keeps_nothing(server: Server) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with server.client() as client, context, context.socket(zmq.DEALER) as raw:
        digest = client.upload_tensors("brief", {"weights": torch.zeros(2, 64)})
        asked = {"model": "", "name": "brief", "hash": digest, "session": True}
        raw.connect(server.endpoint)
        request = Request(1, 1, "load-adapter", asked)
        for message in (Hello(PROTOCOL, bytes(16), "brief"), request, Bye("")):
            raw.send(encode(message))
        until(lambda: "brief" not in [each["name"] for each in client.programs()])


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"a": np.array([1.0, np.nan], np.float32)}, "program-rejected: .*tensor a .*finite"),
        ({"adapter_config": np.zeros(2, np.float32)}, "program-rejected: .*adapter_config"),
        ({"a": np.zeros((2, 2, 2), np.float32)}, "program-rejected: .*tensor a .*two at most"),
        ({"a": np.zeros(2, np.int64)}, "program-rejected: .*tensor a holds 'I64'"),
        ({"a": np.zeros(MOST_VECTOR_BYTES // 4 + 1, np.float32)}, "program-rejected: .*at most"),
        ({"a b": np.zeros(2, np.float32)}, "program-rejected: .*no name of a tensor"),
    ],
)
def test_what_is_refused(server: Server, tensors: dict[str, Any], told: str) -> None:
    with server.client() as client:
        before = kept(client)
        with pytest.raises(RpcError, match=told):
            client.upload_tensors("wrong", tensors)
        assert kept(client) == before


def test_what_does_not_fit(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "short.safetensors"
    save_file({"v": torch.zeros(3)}, file)
    with server.client() as client:
        client.upload_tensors("short", file)
        told = client.run(steered, PROMPT, device.uploaded("short", "v"))
        assert "add of sizes" in told
        with pytest.raises(RpcError, match="not-found: you have uploaded no adapter"):
            client.upload_adapter("short", file.read_bytes())
        with pytest.raises(RpcError, match="has tensors, which device programs are given"):
            client.launch("short")
        client.unload_adapter("short")
