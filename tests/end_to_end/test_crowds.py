"""With `deterministic`, a program's text is the same alone and in a crowd that lacks pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import Server

from pie_py.client import sync

COMPLETION = Path(__file__).parents[2] / "inferlets/text_completion/main.py"
WORDS = "Tirrany is a town. It lies on the river Thessel, where boats bring wool and salt. "
COUNT = 12

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[sync.Client]:
    """A server whose pool holds a few of the programs, of a model in bfloat16."""
    model = {"source": "pie-tiny", "kv_pages": 48, "host_pages": 96, "deterministic": True}
    with Server(models=[model]) as server, server.client() as client:
        yield client


def options(number: int) -> list[str]:
    """Some prompts begin alike; two of three texts are drawn at a high temperature."""
    prompt = WORDS * (1 + number % 4) + f"In {number}"
    chance = ["--temperature", "1.5", "--seed", str(number)] if number % 3 else []
    return ["--max-tokens", "32", "--prompt", prompt, *chance]


def test_a_crowd_changes_no_text(client: sync.Client) -> None:
    program = client.upload(COMPLETION.read_bytes(), name="text_completion")
    alone = ["".join(map(str, client.launch(program, options(n)))) for n in range(COUNT)]
    crowd = [client.launch(program, options(n % COUNT)) for n in range(3 * COUNT)]
    texts = ["".join(map(str, instance)) for instance in crowd]
    assert texts == 3 * alone
