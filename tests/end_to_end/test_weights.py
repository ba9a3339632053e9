"""Weights are replaced while a server serves: what begins then is computed by the new alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from support import reference
from support.checkpoints import make_llama
from support.model_rig import Rig
from support.servers import Server

from inferlet import Context, Model, Sampler, session
from pie_inference.errors import LoadError
from pie_inference.loading.replacing import replace_weights
from pie_py.client import InferletFailed, RpcError
from pie_py.client.sync import Client

pytestmark = pytest.mark.slow

PROMPT = [3 + i % 90 for i in range(50)]  # of which pages are shared
COUNT = 12
TEXT = "Once upon a time"


async def generate(prompt: list[int]) -> tuple[list[int], int, str]:
    """Tokens, how many of the prompt's were found, and the version of the weights."""
    context = Context(Model.load()).append(prompt)
    generation = context.generate(Sampler.argmax(), max_tokens=12, stop=[])
    tokens = await generation.collect_tokens()
    return tokens, context.sequence.found, context.weights_version


async def save(text: str) -> None:
    context = Context(Model.load()).fill(text)
    await context.flush()
    context.save("kept")


async def opened() -> str:
    return "not-found" if Context.open(Model.load(), "kept") is None else "found"


async def long(prompt: list[int], count: int) -> list[int]:
    context = Context(Model.load()).append(prompt)
    first = await context.generate(Sampler.argmax(), max_tokens=5, stop=[]).collect_tokens()
    session.send("runs")
    rest = context.generate(Sampler.argmax(), max_tokens=count, stop=[])
    return first + await rest.collect_tokens()


async def scored(prompt: list[int], count: int) -> list[str]:
    context = Context(Model.load()).append(prompt)
    generation = context.generate(Sampler.argmax(), max_tokens=count, stop=[])
    stream = generation.stream_tokens()
    await anext(stream)
    session.send("runs")
    await session.receive()
    await generation.collect_tokens(logprobs=True)
    return generation.versions


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return [make_llama(folder / f"{seed}", seed=seed, tied=True) for seed in range(2)]


@pytest.fixture(scope="module")
def server(checkpoints: list[Path]) -> Iterator[Server]:
    model = {"source": str(checkpoints[0]), "name": "test", "page_size": 16, "kv_pages": 256}
    with Server(models=[model]) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected


def test_nothing_of_the_former_weights_is_found(client: Client, checkpoints: list[Path]) -> None:
    old, new = (reference.greedy(folder, PROMPT, COUNT) for folder in checkpoints)
    assert old != new
    assert client.run(generate, PROMPT) == (old, 0, "")
    assert client.run(generate, PROMPT) == (old, 48, "")
    client.run(save, TEXT)
    assert client.run(opened) == "found"
    files = [folder / "model.safetensors" for folder in checkpoints]
    assert client.update_weights(files[1]) == "1"
    assert client.run(opened) == "not-found"
    assert client.run(generate, PROMPT) == (new, 0, "1")
    assert client.run(generate, PROMPT) == (new, 48, "1")
    assert client.models()[0]["weights"] == "1"
    assert client.update_weights(load_file(files[0]), version="step 7") == "step 7"
    assert client.run(generate, PROMPT) == (old, 0, "step 7")
    tensors = load_torch(files[1])
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]  # as a module's state has it
    assert client.update_weights(tensors) == "3"
    assert client.run(generate, PROMPT) == (new, 0, "3")


def test_each_token_has_its_version(client: Client, checkpoints: list[Path]) -> None:
    former = client.models()[0]["weights"]
    call = client.spawn(scored, PROMPT, 400)
    assert call.instance.receive() == "runs"
    client.update_weights(checkpoints[1] / "model.safetensors", version="b")
    call.instance.send("go on")
    found = call.result()
    assert len(found) == 399
    assert found == sorted(found)
    assert set(found) == {former, "b"}


def test_what_is_refused_changes_nothing(
    client: Client, checkpoints: list[Path], tmp_path: Path
) -> None:
    old = reference.greedy(checkpoints[0], PROMPT, COUNT)
    version = client.update_weights(checkpoints[0] / "model.safetensors")
    client.run(generate, PROMPT)
    tensors = load_file(checkpoints[1] / "model.safetensors")
    tensors["model.norm.weight"] = np.zeros(5, np.float32)
    with pytest.raises(RpcError, match=r"invalid-argument: .*norm.weight is \[5\], not \[64\]"):
        client.update_weights(tensors)
    tensors["model.norm.weight"] = np.full(64, np.nan, np.float32)
    with pytest.raises(RpcError, match=r"invalid-argument: .*norm.weight holds .* not finite"):
        client.update_weights(tensors)
    assert client.run(generate, PROMPT) == (old, 48, version)  # what was cached is still right
    with pytest.raises(RpcError, match=r"invalid-argument: .*none.* cannot be read"):
        client.update_weights(tmp_path / "none")
    with pytest.raises(RpcError, match="unknown-model"):
        client.update_weights(tensors, "nothing")
    with pytest.raises(ValueError, match="NumPy"):
        client.update_weights({"model.norm.weight": [1.0]})


def test_pages_of_a_text_that_runs_are_its_own(client: Client, checkpoints: list[Path]) -> None:
    """A paused text goes on, and nobody finds what it has kept of the former weights."""
    other = PROMPT[::-1]
    new, new_other = (reference.greedy(checkpoints[1], each, COUNT) for each in (PROMPT, other))
    client.update_weights(checkpoints[0] / "model.safetensors")
    call = client.spawn(long, PROMPT, 400)
    assert call.instance.receive() == "runs"
    client.pause_model()
    sent = client.stats()["test"]["plans"]
    waiting = client.spawn(generate, other)
    time.sleep(0.2)
    assert client.stats()["test"]["plans"] == sent
    client.update_weights(checkpoints[1] / "model.safetensors")
    assert client.stats()["test"]["plans"] == sent
    client.resume_model()
    assert waiting.result()[0] == new_other
    assert len(call.result()) == 405
    assert client.run(generate, PROMPT)[0] == new
    client.resume_model()  # which it is not any more


def test_a_pause_that_keeps_nothing(client: Client) -> None:
    call = client.spawn(long, PROMPT, 800)
    assert call.instance.receive() == "runs"
    client.pause_model(keep=False)
    with pytest.raises(InferletFailed, match="the operator has paused model 'test'"):
        call.result()
    client.resume_model()
    assert client.run(generate, PROMPT)[0]


@pytest.mark.nightly
def test_a_worker_that_is_lost_says_so(
    server: Server, client: Client, checkpoints: list[Path]
) -> None:
    client.update_weights(checkpoints[1] / "model.safetensors")
    server.worker.kill()
    old = reference.greedy(checkpoints[0], PROMPT, COUNT)
    until = time.monotonic() + 60
    while True:
        try:
            found: Any = client.run(generate, PROMPT)
        except InferletFailed:
            assert time.monotonic() < until
            continue
        break
    assert found == (old, 0, "")
    assert client.models()[0]["weights"] == ""


@pytest.mark.nightly
def test_weights_of_several_ranks_stay(checkpoints: list[Path]) -> None:
    model = Rig(checkpoints[0]).model
    model = replace(model, ranks=replace(model.ranks, size=2))
    with pytest.raises(LoadError, match="tensor_parallel_size is above 1"):
        replace_weights(model, checkpoints[1] / "model.safetensors")
