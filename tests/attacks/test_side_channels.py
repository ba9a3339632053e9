"""What a user's calls take does not tell what other users have done: by counts of work, not by a
clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from support.checkpoints import small_tokenizer
from support.compiled_grammars import compile_grammar
from support.scheduler_fixtures import MODEL, Guest, Server, u32

from pie_control.api import prefix
from pie_control.api.grammar.service import GrammarService
from pie_control.confined.pool import ConfinedPool
from pie_control.fairness import FairThreads
from pie_control.models.tokenizer import TextCodec
from pie_py.config.scheduling import PrefixCacheConfig
from pie_py.config.services import ConfinedConfig, GrammarConfig

WORDS = replace(MODEL, vocab_size=400, stop_tokens=[1])


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    folder: Path = tmp_path_factory.mktemp("model")
    small_tokenizer().save_pretrained(folder)
    return TextCodec(folder)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose compilations have been made, in confined processes and in threads of the server."""
    made: list[str] = []
    confined, threads = ConfinedPool.call, FairThreads.submit

    async def call(pool: ConfinedPool, owner: Any, *args: Any, **options: Any) -> Any:
        made.append(f"{owner.user}, confined")
        return await confined(pool, owner, *args, **options)

    def submit(pool: Any, owner: Any, work: Callable[[], None]) -> None:
        made.append(f"{owner.user}, thread")
        threads(pool, owner, work)

    monkeypatch.setattr(ConfinedPool, "call", call)
    monkeypatch.setattr(FairThreads, "submit", submit)
    return made


@pytest.mark.parametrize("shared", [False, True])
async def test_a_grammar_that_another_user_has_compiled_is_compiled_again(
    codec: TextCodec, jobs: list[str], *, shared: bool
) -> None:
    pool = ConfinedPool(ConfinedConfig(processes=2))
    service = GrammarService(GrammarConfig(shared=shared), pool)

    async def compiled(user: str, text: str) -> list[str]:
        jobs.clear()
        await compile_grammar(service, WORDS, codec, "regex", text, user)
        return [job.removeprefix(user) for job in jobs]

    with trio.fail_after(60):
        await compiled("mallory", "x")  # what is prepared once
        first = await compiled("mallory", "[ab]c")
        assert first
        assert await compiled("mallory", "[ab]c") == []
        assert await compiled("victim", "[ab]c") == ([] if shared else first)
        assert service.compiled(WORDS.name, "regex", "[ab]c", "eve") is None or shared
    pool.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_text_that_another_user_has_computed_is_computed_again(*, shared: bool) -> None:
    """The worker is asked for the same whatever mallory has computed before."""
    text, another = list(range(20)), list(range(100, 120))

    def asked(of_mallory: list[int]) -> list[Any]:
        server = Server(prefix_cache=PrefixCacheConfig(shared=shared))
        compute(server, "mallory", of_mallory)
        server.worker.sizes.clear()
        found = compute(server, "victim", text)
        return [found, *server.worker.sizes]

    assert (asked(text) == asked(another)) is not shared


def compute(server: Server, user: str, tokens: list[int]) -> int:
    """Computes what is not found of a text, and lets others find it; how many tokens were found."""
    guest = Guest(server, server.launch(user))
    one, queue = guest.instance, guest.queue
    pages, _ = prefix.match_prefix(one, queue, "", u32(*tokens))
    count: int = 8 * sum(pages[1::2])
    rest = tokens[count:]
    own, embeds = guest.pages(-(-len(rest) // 8)), guest.embeds(len(rest))
    guest.embed(rest, count, embeds)
    guest.forward(pages, embeds, own)
    server.drain()
    prefix.insert_prefix(one, queue, [*pages, *own])
    return count
