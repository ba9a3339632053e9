"""The prefix cache through the whole system: guests in both languages, a real model, a small
pool.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import reference
from support.checkpoints import make_adapter
from support.rust_components import rust_component
from support.servers import Server

from pie_py.client import ClientError
from pie_py.client.sync import Client

pytestmark = pytest.mark.slow

LANGUAGES = ("python", "rust")
KV_PAGES = 24
REASONS = ("cancel", "killed", "out-of-resources")
COMMON = random.Random(7).choices(range(3, 300), k=70)


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    adapter = make_adapter(
        checkpoint, tmp_path_factory.mktemp("adapter"), target_modules="all-linear"
    )
    model = {
        "source": str(checkpoint),
        "name": "test",
        "page_size": 16,
        "kv_pages": KV_PAGES,
        "adapters": {"a": str(adapter)},
    }
    with Server(models=[model], scheduler={"prompt_tokens": 32}) as running:
        yield running


def launch(client: Client, guests: Path, language: str, tokens: list[int], *moves: str) -> Any:
    """An instance that moves a context of these tokens about; "go" generates five more."""
    program = rust_component("memory_guests") if language == "rust" else guests / "memory.py"
    given = json.dumps({"tokens": tokens, "moves": moves})
    return client.launch(client.upload(program), ["moves", given])


def generated(instance: Any) -> list[int]:
    tokens: list[int] = json.loads(instance.result())["tokens"]
    return tokens


def outcome(instance: Any) -> list[int] | str:
    """What it generated, or why not."""
    try:
        return generated(instance)
    except ClientError as error:
        return str(error)


def test_whoever_computed_it_the_text_is_the_same(
    client: Client, guests: Path, checkpoint: Path
) -> None:
    texts: list[list[int]] = [COMMON]
    for number, language in enumerate(LANGUAGES * 3):
        text = texts[-1] if number % 2 else texts[0] + [5 + number] * 20
        answer = generated(launch(client, guests, language, text, "go", "go", "discard", "go"))
        assert answer == reference.greedy(checkpoint, text, 15)
        texts.append(text + answer)
    stats = client.stats()["test"]
    # The last one began with all but the last, partial page of what was there; it was discarded and
    # found.
    assert stats["prefix_tokens_found"] >= 4 * 64
    assert stats["kv_pages_free"] == KV_PAGES
    assert stats["prefix_pages"] == stats["prefix_pages_free"] > 0


def test_those_who_are_ended_halfway_leave_nothing_wrong(
    client: Client, guests: Path, checkpoint: Path
) -> None:
    rng = random.Random(3)
    wanted: dict[tuple[int, ...], list[int]] = {}
    for round_ in range(2):
        texts = [COMMON[: rng.randrange(20, 70)] + [round_, number] * 9 for number in range(6)]
        running = [
            (text, launch(client, guests, rng.choice(LANGUAGES), text, "go", "fork", "go"))
            for text in texts
        ]
        for number in rng.sample(range(6), 2):
            running[number][1].cancel()
        for text, instance in running:
            key = tuple(text)
            wanted.setdefault(key, reference.greedy(checkpoint, text, 10))
            answer = outcome(instance)
            ended = isinstance(answer, str) and any(reason in answer for reason in REASONS)
            assert ended or answer == wanted[key]
    stats = client.stats()["test"]
    assert stats["kv_pages_free"] == KV_PAGES
