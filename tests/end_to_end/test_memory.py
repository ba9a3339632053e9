"""Offload and adapters through the whole system, in both languages; introspect in Python."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import reference
from support.checkpoints import make_adapter
from support.rust_components import rust_component
from support.servers import Server, until
from transformers import AutoModelForCausalLM

from pie_py.cli.models import adapters as adapters_command
from pie_py.cli.programs import upload as upload_command
from pie_py.client import Client as AsyncClient
from pie_py.client import ClientError, RpcError
from pie_py.client.sync import Client

pytestmark = pytest.mark.slow

LANGUAGES = ("python", "rust")
KV_PAGES, HOST_PAGES = 64, 24
PROMPT = random.Random(4).choices(range(3, 300), k=41)


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "a": make_adapter(checkpoint, folder / "a", 1, target_modules=["q_proj", "v_proj"]),
        "b": make_adapter(checkpoint, folder / "b", 2, target_modules="all-linear"),
        "c": make_adapter(checkpoint, folder / "c", 3, target_modules=["o_proj", "down_proj"]),
    }


@pytest.fixture(scope="module")
def server(checkpoint: Path, adapters: dict[str, Path]) -> Iterator[Server]:
    model = {
        "source": str(checkpoint),
        "name": "test",
        "page_size": 16,
        "kv_pages": KV_PAGES,
        "host_pages": HOST_PAGES,
        "adapters": {name: str(adapters[name]) for name in "ab"},
    }
    with Server(models=[model]) as running:
        yield running


@pytest.fixture
def run(server: Server, guests: Path) -> Iterator[Callable[..., Any]]:
    with server.client() as client:

        def call(language: str, mode: str, **given: Any) -> Any:
            rust = language == "rust"
            program = rust_component("memory_guests") if rust else guests / "memory.py"
            instance = client.launch(client.upload(program), [mode, json.dumps(given)])
            return json.loads(instance.result())

        yield call


def test_a_context_that_is_swapped_out_gives_all_back(run: Callable[..., Any]) -> None:
    left = run("python", "released", tokens=PROMPT)
    assert left["host_pages_mine"] == 0
    assert left["embeds_mine"] == 0


def wanted(checkpoint: Path, adapter: Path | None, count: int) -> list[int]:
    """Greedy tokens by PEFT."""
    if adapter is None:
        return reference.greedy(checkpoint, PROMPT, count)
    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    from peft import PeftModel  # takes seconds: only where it is used

    model = PeftModel.from_pretrained(base, adapter).eval()
    with torch.inference_mode():
        found = model.generate(
            input_ids=torch.tensor([PROMPT]),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[int] = found[0, len(PROMPT) :].tolist()
    return tokens


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_go_on_after_their_pages_were_away(
    run: Callable[..., Any], checkpoint: Path, language: str
) -> None:
    moves = ["go", "out", "in", "go", "out", "out", "in", "in", "go", "discard", "go"]
    moves += ["fork", "go", "out", "discard", "go", "out"]
    answer = run(language, "moves", tokens=PROMPT, moves=moves)
    assert answer["tokens"] == reference.greedy(checkpoint, PROMPT, 30)
    stats = answer["stats"]
    assert stats["kv_pages_mine"] == 0
    assert 0 < stats["host_pages_mine"] == HOST_PAGES - stats["host_pages_free"]


def test_costs_are_told(run: Callable[..., Any]) -> None:
    costs = run("python", "costs")
    assert costs["page_size"] == 16
    for way in ("swap_out", "swap_in"):
        assert costs[way]["bytes_per_second"] > 1e6
    assert len(costs["prefill"]["fit"]) == 3
    assert len(costs["decode"]["seconds"]) == len(costs["decode"]["sequences"]) > 0


def test_nothing_is_left_when_instances_end(server: Server, run: Callable[..., Any]) -> None:
    run("python", "moves", tokens=PROMPT, moves=["go", "out"])
    with server.client() as client:
        stats = client.stats()["test"]
    assert stats["kv_pages_free"] == KV_PAGES
    assert stats["host_pages_free"] == HOST_PAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_adapters_and_none_at_once(
    run: Callable[..., Any], checkpoint: Path, adapters: dict[str, Path], language: str
) -> None:
    assert run(language, "names") == ["a", "b"]
    order = ["a", "", "b", "a", ""]
    found = run(language, "adapters", tokens=PROMPT, adapters=order)
    expected = {name: wanted(checkpoint, adapters.get(name), 12) for name in set(order)}
    assert found == [expected[name] for name in order]
    assert len({tuple(tokens) for tokens in found}) == 3


def test_adapters_come_and_go(
    client: Client, run: Callable[..., Any], checkpoint: Path, adapters: dict[str, Path]
) -> None:
    client.load_adapter("c", adapters["c"])
    assert {"model": "test", "name": "c"} in client.adapters()
    assert client.models()[0]["adapters"] == ["a", "b", "c"]
    expected = wanted(checkpoint, adapters["c"], 12)
    assert run("python", "adapters", tokens=PROMPT, adapters=["c"]) == [expected]
    for name, folder, code in (
        ("c", adapters["c"], "already-exists"),
        ("d", checkpoint, "invalid-argument: adapter .* no adapter_config.json"),
        ("d", Path("relative"), "invalid-argument"),
    ):
        with pytest.raises(RpcError, match=code):
            client.load_adapter(name, folder)
    client.unload_adapter("c", "test")
    with pytest.raises(RpcError, match="not-found"):
        client.unload_adapter("c")
    with pytest.raises(ClientError, match=r"not-found: .*no adapter 'c' loaded"):
        run("python", "adapters", tokens=PROMPT, adapters=["c"])


def test_users_upload_their_own_and_replace_them_in_use(
    client: Client,
    server: Server,
    run: Callable[..., Any],
    guests: Path,
    checkpoint: Path,
    adapters: dict[str, Path],
) -> None:
    program = client.upload(guests / "memory.py")

    def quota() -> dict[str, int]:
        kinds = client.quota()[0]["kinds"]
        return {each["kind"]: each["has"] for each in kinds}

    def generated() -> list[int]:
        return run("python", "adapters", tokens=PROMPT, adapters=["own"])[0]  # type: ignore[no-any-return]

    before = quota()
    given = json.dumps({"tokens": PROMPT, "adapter": "own"})
    old = client.upload_adapter("own", adapters["c"])
    expected = wanted(checkpoint, adapters["c"], 12)
    instance = client.launch(program, ["stays", given])
    assert instance.receive() == old
    new = client.upload_adapter("own", adapters["a"])
    assert old != new == client.upload_adapter("own", adapters["a"])  # which changes nothing
    assert generated() == wanted(checkpoint, adapters["a"], 12)
    assert quota()["test: adapters"] == 2
    instance.send("go on")
    assert json.loads(instance.result()) == [expected, expected, old]
    now = quota()
    assert now["test: adapters"] == 1
    room = (adapters["a"] / "adapter_model.safetensors").stat().st_size
    assert room < now["bytes of programs"] - before["bytes of programs"] < room + 8192

    server.worker.kill()
    until(lambda: {"model": "test", "name": "own"} not in client.adapters())
    until(lambda: {"model": "test", "name": "own"} in client.adapters())
    assert generated() == wanted(checkpoint, adapters["a"], 12)

    with server.client() as other:
        other.upload_adapter("own", adapters["c"], for_session=True)
        assert generated() == expected
    until(lambda: {"model": "test", "name": "own"} not in client.adapters())

    with server.client() as other:
        other.upload_adapter("own", adapters["c"], for_session=True)
        client.upload_adapter("own", adapters["c"])  # to stay
        gone = other.upload_adapter("gone", adapters["a"], for_session=True)
        client.unload_adapter("gone")
        assert client.upload_adapter("gone", adapters["a"]) == gone
    assert {"own", "gone"} <= {each["name"] for each in client.adapters()}
    client.unload_adapter("own")
    client.unload_adapter("gone")
    server.worker.suspend()
    anyio.run(_leave_while_it_loads, server.endpoint, adapters["c"])
    server.worker.resume()
    client.upload_adapter("next", adapters["a"])  # after the other
    assert "own" not in [each["name"] for each in client.adapters()]
    client.unload_adapter("next")
    until(lambda: quota()["test: adapters"] == 0)
    assert quota()["bytes of programs"] == before["bytes of programs"]


async def _leave_while_it_loads(endpoint: str, folder: Path) -> None:
    async with AsyncClient(endpoint) as client:
        with anyio.move_on_after(1):
            await client.upload_adapter("own", folder, for_session=True)


def _spoiled(folder: Path, to: Path, name: str, **config: Any) -> Path:
    """An adapter with other settings, or whose tensors are changed by name."""
    shutil.copytree(folder, to)
    file = to / "adapter_model.safetensors"
    tensors = load_file(file)
    if name == "nan":
        next(iter(tensors.values()))[0, 0] = float("nan")
    elif name == "shape":
        tensors = {each: tensor[:, :-1].clone() for each, tensor in tensors.items()}
    elif name == "other":
        tensors["model.layers.0.mlp.other.lora_A.weight"] = torch.zeros(4, 4)
    elif name == "whole":
        tensors = {f"n{i}": torch.zeros(1) for i in range(8193)}
    save_file(tensors, file)
    settings = json.loads((to / "adapter_config.json").read_text()) | config
    (to / "adapter_config.json").write_text(json.dumps(settings))
    return to


@pytest.mark.parametrize(
    ("name", "config", "told"),
    [
        ("nan", {}, "invalid-argument: .*not finite"),
        ("shape", {}, "invalid-argument: .*the model and the rank want"),
        ("other", {}, "invalid-argument: .*cannot be adapted"),
        ("whole", {}, "program-rejected: .*8193 tensors"),
        ("", {"target_modules": "(a+)+b"}, "program-rejected: .*is a pattern"),
        ("", {"rank_pattern": {"(a+)+": 2}}, "program-rejected: .*is a pattern"),
        ("", {"r": 1000}, "program-rejected: .*a rank of 1000"),
        ("", {"r": "many"}, "program-rejected: .*cannot be read"),
        ("", {"use_dora": True}, "program-rejected: .*only an operator"),
        ("", {"peft_type": "LOHA"}, "invalid-argument: .*LOHA"),
    ],
)
def test_what_is_no_adapter_for_the_model_is_not_kept(
    client: Client,
    adapters: dict[str, Path],
    tmp_path: Path,
    name: str,
    config: dict[str, Any],
    told: str,
) -> None:
    folder = _spoiled(adapters["c"], tmp_path / "bad", name, **config)
    before = client.quota()
    with pytest.raises(RpcError, match=told):
        client.upload_adapter("bad", folder)
    with pytest.raises(RpcError, match="already-exists"):
        client.upload_adapter("a", adapters["c"])
    assert client.quota() == before
    assert [each["name"] for each in client.adapters()] == ["a", "b"]


@pytest.mark.nightly
def test_a_deterministic_model_takes_none_and_forgets_none(
    checkpoint: Path, adapters: dict[str, Path], short_folder: Path
) -> None:

    def serving(deterministic: bool) -> Server:
        model = {"source": str(checkpoint), "name": "test", "deterministic": deterministic}
        return Server(short_folder, models=[model])

    kept = [{"model": "test", "name": "c"}]
    with serving(deterministic=False) as server, server.client() as client:
        client.load_adapter("c", adapters["c"])
    with serving(deterministic=True) as server, server.client() as client:
        assert client.adapters() == []
        for again in ("c", "d"):
            with pytest.raises(RpcError, match="unsupported: the model is `deterministic`"):
                client.load_adapter(again, adapters["c"])
    with serving(deterministic=False) as server, server.client() as client:
        until(lambda: client.adapters() == kept)


def test_the_command_line_loads_and_lists(
    server: Server, adapters: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*args: str) -> str:
        adapters_command([*args, "--endpoint", server.endpoint], standalone_mode=False)
        return capsys.readouterr().out

    call("load", "c", str(adapters["c"]))
    names = [each["name"] for each in json.loads(call("list", "--json"))]
    assert names == ["a", "b", "c"]
    upload_command(
        [str(adapters["c"]), "--adapter", "--name=own", "--endpoint", server.endpoint],
        standalone_mode=False,
    )
    version = capsys.readouterr().out.strip()
    assert "own" in call("list")
    with server.client() as client:
        assert [each["hash"] for each in client.programs() if each["name"] == "own"] == [version]
    call("unload", "own")
    call("unload", "c", "--model", "test")
    assert "c" not in call("list").split()


@pytest.mark.parametrize(("observed", "first"), [(1, 0), (7, 0), (7, 50)])
@pytest.mark.parametrize("adapter", [None, "b"])
def test_attention(
    run: Callable[..., Any],
    checkpoint: Path,
    adapters: dict[str, Path],
    observed: int,
    first: int,
    adapter: str | None,
) -> None:
    """Whatever the position of the first token: the distances are the same."""
    given = {"adapter": adapter} if adapter else {}
    found = run("python", "attention", tokens=PROMPT, observed=observed, first=first, **given)
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapters[adapter])
    with torch.inference_mode():
        out = model.eval()(torch.tensor([PROMPT]), output_attentions=True)
    attentions = torch.cat(out.attentions)[:, :, -observed:].sum(2)  # [layers, heads, tokens]
    expected = (
        attentions.mean((0, 1), keepdim=True)[0],
        attentions.mean(1),
        attentions.flatten(0, 1),
    )
    for rows, wanted_rows in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(rows), wanted_rows, atol=1e-4, rtol=0)
