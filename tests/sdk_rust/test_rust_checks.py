"""The SDK's own tests, which run in Wasm at a real server; see `rust_guests/src/checks.rs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.checkpoints import make_llama
from support.rust_components import rust_component
from support.servers import Server

from pie_py.client.sync import Client

AREAS = (
    *("json", "args", "sampler", "stop-strings", "decoder"),
    *("tasks", "exports", "context", "chat"),
    *("several", "branches"),
    *("grammar", "text", "lone", "begun", "full"),
)


@pytest.mark.parametrize("area", AREAS)
def test_checks(client: Client, area: str) -> None:
    instance = client.launch(client.upload(rust_component("guests")), ["check", area])
    try:
        assert instance.result() == "ok"
    except Exception as error:
        error.add_note(f"log: {instance.logs()}")
        raise


def test_the_log_has_levels(client: Client) -> None:
    instance = client.launch(client.upload(rust_component("guests")), ["check", "logs"])
    assert instance.result() == "ok"
    lines = [(line["level"], line["text"]) for line in instance.logs()["lines"]]
    assert lines.pop()[1].startswith("éé")  # cut: so long a text would be a trap
    assert lines == [
        ("debug", "one of 4"),
        ("info", "two"),
        ("warning", "three é"),
        ("error", "four"),
    ]


def test_characters_of_a_tokenizer_that_falls_back_to_bytes(tmp_path: Path) -> None:
    """Such a one decodes a run of byte tokens as a whole, or gives all of it up."""
    folder = make_llama(tmp_path / "model", max_position=256)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    specials = [token["content"] for token in tokenizer["added_tokens"]]
    names = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b"]
    tokenizer["model"] |= {
        "vocab": {name: token for token, name in enumerate(names)},
        "merges": [],
        "byte_fallback": True,
    }
    tokenizer["pre_tokenizer"] = None
    tokenizer["decoder"] = {
        "type": "Sequence",
        "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with (
        Server(models=[{"source": str(folder), "kv_pages": 16}]) as server,
        server.client() as client,
    ):
        test_checks(client, "byte-fallback")
