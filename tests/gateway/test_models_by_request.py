"""Models that are loaded when a request asks for them, over HTTP: OpenAI's, Ollama's, llama.cpp's
ways to say so.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.gateways import Gateway
from support.servers import EMBEDDED, Server, until

HOLDER = b"""
from inferlet import Context, Model, session

async def main(args):
    context = Context(Model.load("one"))
    context.append([5, 6, 7])
    await context.flush()
    session.send("holds")
    await session.receive()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With room for one of two models beside the one that is always there."""
    folder = tmp_path_factory.mktemp("s")
    models: list[dict[str, Any]] = [{"source": str(EMBEDDED)}]
    for name in ("one", "two"):
        shutil.copytree(EMBEDDED, folder / name)
        models.append({"source": str(folder / name), "on_demand": True})
    models.append({"source": "smollm2", "on_demand": True})
    models = [{**model, "kv_pages": 256, "host_pages": 0} for model in models]
    bounds = {"most": 1, "wait_seconds": 300}
    instant = "benchmarks.instant_worker"  # what is told of a model is asked here, not texts
    with Server(folder, models=models, on_demand=bounds, worker_module=instant) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with pytest.MonkeyPatch.context() as patched:  # of pulls
        folder = tmp_path_factory.mktemp("g")
        patched.setenv("XDG_CACHE_HOME", str(folder))
        patched.setenv("PIP_NO_INDEX", "1")
        patched.delenv("PIP_FIND_LINKS", raising=False)
        with (
            Gateway(server, folder, on_demand={"wait_seconds": 300}) as gateway,
            gateway.http() as http,
        ):
            http.timeout = 300  # a worker starts on a busy machine
            yield http


def states(http: httpx2.Client) -> dict[str, str]:
    listed = http.get("/models").json()["data"]
    return {each["id"]: each["status"]["value"] for each in listed}


def chat(http: httpx2.Client, model: str) -> httpx2.Response:
    messages = [{"role": "user", "content": "the cat"}]
    wanted = {"model": model, "messages": messages, "max_tokens": 2, "temperature": 0}
    return http.post("/v1/chat/completions", json=wanted)


def test_a_chat_loads_its_model(http: httpx2.Client) -> None:
    assert http.get("/v1/models/one").json()["max_model_len"] is None  # nothing is known of it
    assert http.post("/api/show", json={"model": "one"}).json()["capabilities"] == ["completion"]
    assert states(http)["one"] == "unloaded"
    texts = [chat(http, model).json()["choices"][0]["message"] for model in ("one", "two")]
    assert texts[0] == texts[1]
    until(lambda: states(http)["two"] == "loaded", 300)
    assert states(http) == {
        "pie-tiny": "loaded",
        "one": "unloaded",
        "two": "loaded",
        "smollm2": "unloaded",
    }
    assert http.get("/v1/models/two").json()["max_model_len"] > 0


def test_as_ollama_and_as_llama_cpp_have_it(http: httpx2.Client) -> None:
    def running() -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in http.get("/api/ps").json()["models"]}

    assert http.post("/models/load", json={"model": "two"}).json() == {"success": True}
    assert running()["two"]["size"] > 1 << 20
    assert "expires_at" in running()["two"]
    assert "expires_at" not in running()["pie-tiny"]
    body = {"model": "two", "messages": [{"role": "user", "content": "x"}], "stream": False}
    answer = http.post("/api/chat", json={**body, "keep_alive": 0})
    assert answer.json()["done"]
    until(lambda: set(running()) == {"pie-tiny"}, 300)
    loaded = http.post("/api/generate", json={"model": "two", "keep_alive": "1h30m"}).json()
    assert loaded["done_reason"] == "load"
    assert set(running()) == {"pie-tiny", "two"}
    gone = http.post("/api/generate", json={"model": "two", "keep_alive": 0}).json()
    assert gone["done_reason"] == "unload"
    assert set(running()) == {"pie-tiny"}
    wrong = http.post("/api/generate", json={"model": "two", "keep_alive": "soon"})
    assert (wrong.status_code, "no time such as 5m" in wrong.text) == (400, True)
    http.post("/models/load", json={"model": "two"})
    assert http.post("/models/unload", json={"model": "two"}).json() == {"success": True}
    assert http.post("/models/unload", json={"model": "pie-tiny"}).status_code == 404


@pytest.mark.nightly
def test_who_waits_too_long_is_told_when_to_ask_again(server: Server, tmp_path: Path) -> None:
    with (
        server.client() as client,
        Gateway(server, tmp_path, on_demand={"wait_seconds": 0.5}) as gateway,
        gateway.http() as impatient,
    ):
        held = client.launch(client.upload(HOLDER, "holder"))
        assert held.receive() == "holds"
        refused = chat(impatient, "two")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["code"] == "loading"
        busy = impatient.post("/models/unload", json={"model": "one"})
        assert (busy.status_code, "in use" in busy.text) == (409, True)
        held.send("end")
        held.result()
        until(lambda: chat(impatient, "two").status_code == 200, 300)


@pytest.mark.nightly
def test_a_pull_says_how_far_it_is(http: httpx2.Client) -> None:
    def pull(model: str) -> list[dict[str, Any]]:
        lines = http.post("/api/pull", json={"model": model}).text.splitlines()
        return [json.loads(line) for line in lines if line]

    assert [each["status"] for each in pull("pie-tiny")] == ["pulling manifest", "success"]
    failed = pull("smollm2")
    assert failed[1]["status"] == "pulling smollm2"
    assert failed[1]["digest"].startswith("sha256:")
    assert failed[1]["total"] > 9e7
    assert "the package index does not have it" in failed[-1]["error"]
    whole = http.post("/api/pull", json={"model": "one", "stream": False})
    assert whole.json() == {"status": "success"}
    assert http.post("/api/pull", json={"model": "nobody"}).status_code == 404
