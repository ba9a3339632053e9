"""Turns whose memory does not fit together, without host pages: all are answered, as alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from support.gateways import Gateway
from support.servers import Server

from pie_py.wire.rpc import MADE_WAY

PAGE, PAGES = 8, 32
TOKENS = 140  # of each answer: pages of two answers do not fit together


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    sizes = {"page_size": PAGE, "kv_pages": PAGES, "host_pages": 0}
    with Server(models=[{"source": "pie-tiny", **sizes}]) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with (
        Gateway(server) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def answer(client: openai.OpenAI, number: int) -> tuple[str, int, int]:
    """A streamed answer, every second one drawn: text, log-probabilities that came, tokens."""
    chunks = client.completions.create(
        model="pie-tiny",
        prompt=f"Story number {number}: once upon a time",
        max_tokens=TOKENS,
        seed=number,
        temperature=number % 2,
        logprobs=1 if number < 2 else None,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    text, told, used = "", 0, 0
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.text
            told += len((choice.logprobs and choice.logprobs.tokens) or [])
        used = chunk.usage.completion_tokens if chunk.usage else used
    return text, told, used


@pytest.mark.nightly
def test_turns_that_make_way_are_computed_again(server: Server, client: openai.OpenAI) -> None:
    alone = [answer(client, number) for number in range(4)]
    assert [told for _, told, _ in alone] == 2 * [TOKENS] + 2 * [0]
    assert all(used == TOKENS for *_, used in alone)
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(lambda number: answer(client, number), range(4))] == alone
    with server.client() as control:
        assert any(MADE_WAY in str(each) for each in control.instances(ended=True))
