"""Runs that guess: in fewer steps where guesses are right, and never other tokens."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from scheduler.test_runs import SAMPLERS, Runner, chosen
from support.scheduler_fixtures import Server, refused

from pie_control.scheduler.speculation import (
    LONGEST_PAUSE,
    MOST_MATCHED,
    PAIR,
    Found,
    Jacobi,
    Lookup,
    Price,
    PromptLookup,
)
from pie_py.wire.plan import Plan, PlanResult, Sample


def guessing(**facts: Any) -> Server:
    most = {"kv_pages": 200, "max_batch_tokens": 100, "max_batch_commands": 50, "draft_embeds": 20}
    return Server(**{**most, **facts})


def begun(
    server: Server, sampler: str, guesses: list[int], most: int = 16, text: int = 3
) -> tuple[Runner, int]:
    """A guest whose run of 30 tokens guesses."""
    guest = Runner(server, text)
    server.drain()
    run = guest.start(guest.sampler(sampler), 30)
    guest.speculate(run, guesses, most)
    return guest, run


def slow_lookup(tokens: list[int]) -> Found | None:
    """As `PromptLookup.find` by definition, whatever the number of places."""
    best = None
    for end in range(PAIR, len(tokens)):
        matched = 0
        while (
            matched < min(end, MOST_MATCHED)
            and tokens[end - 1 - matched] == tokens[len(tokens) - 1 - matched]
        ):
            matched += 1
        if matched >= PAIR and (best is None or matched >= best.matched):
            best = Found(end, matched)
    return best


@given(st.lists(st.integers(0, 5), max_size=24), st.lists(st.integers(0, 5), max_size=8))
def test_lookup_finds_the_longest_match_at_its_latest_place(
    text: list[int], more: list[int]
) -> None:
    # Few enough places for each pair to be looked at.
    lookup = PromptLookup(text)
    for count in range(len(more) + 1):
        tokens = text + more[:count]
        wanted, found = slow_lookup(tokens), lookup.find()
        pairs = sum(tokens[i : i + 2] == tokens[-2:] for i in range(len(tokens) - 2))
        if len(tokens) > 1 and pairs <= 4:
            assert found == wanted
        elif found is not None:
            assert tokens[found.end - found.matched : found.end] == tokens[-found.matched :]
        if count < len(more):
            lookup.add(more[count])


def test_what_follows_repeats_itself_at_the_end_of_the_text() -> None:
    lookup = PromptLookup([9, 1, 2, 3, 1, 2])
    assert lookup.find() == Found(3, 2)
    assert lookup.follows(3, 7) == [3, 1, 2, 3, 1, 2, 3]


def test_guesses_that_are_wrong_become_rare_and_come_back_where_they_are_right() -> None:
    price, guesser = Price(), Lookup([1, 2, 3] * 4, 8)
    tokens: list[int] = []
    tries = 0
    for i in range(200):
        tokens += [1, 2]
        guesser.read(tokens)
        if guess := guesser.guess(8, price):
            tries += 1
            guesser.learn(len(guess), 0, [], price)
        tokens += [100 + i]
        guesser.read(tokens)
    assert 4 < tries < 40
    assert 2 < guesser.rests <= LONGEST_PAUSE
    tokens += [*range(1000, 998 + guesser.rests), 1, 2]
    guesser.read(tokens)
    assert guesser.rests == 0
    assert guesser.guess(8, price)
    for _ in range(LONGEST_PAUSE):
        tokens += [5, 6, 7]
    guesser.read(tokens)
    guess = guesser.guess(8, price)
    assert guess == ([5, 6, 7] * 3)[: len(guess)]
    for _ in range(3):
        guesser.learn(len(guess), len(guess), [], price)
        guess = guesser.guess(8, price)
    assert len(guess) == 8


def decode(
    following: Callable[[list[int]], int], most: int, count: int
) -> tuple[list[int], list[int]]:
    """So many tokens by Jacobi's guesses, and how many were guessed in each step, of a model that
    says what follows a text.
    """
    price, guesser, tokens, guessed = Price(), Jacobi(most), [1], []
    while len(tokens) < count:
        guesser.read(tokens)
        guess = guesser.guess(most, price)
        chosen = [following(tokens + guess[:i]) for i in range(len(guess) + 1)]
        right = next((i for i, token in enumerate(guess) if token != chosen[i]), len(guess))
        tokens += chosen[: right + 1]
        guessed.append(len(guess))
        if guess:
            guesser.read(tokens)
            guesser.learn(len(guess), right, chosen[right + 1 :], price)
    return tokens, guessed


def test_jacobis_guesses_are_what_was_chosen_behind_a_wrong_one() -> None:
    # What follows depends on the place alone: a step's choices are all right.
    tokens, guessed = decode(lambda text: 7 * len(text) % 100, 8, 60)
    assert tokens[1:60] == [7 * i % 100 for i in range(1, 60)]
    assert len(guessed) < 16
    assert set(guessed) == {8}


def test_jacobis_guesses_converge_from_the_first_on() -> None:
    # Each token follows from the one before, so each step mends one guess, and that is as without.
    tokens, guessed = decode(lambda text: text[-1] + 1, 4, 200)
    assert tokens[:200] == list(range(1, 201))
    assert 8 <= sum(count > 0 for count in guessed) <= 48


def test_jacobis_guesses_go_on_where_tokens_agree_with_them() -> None:
    guesser, price = Jacobi(4), Price()
    guesser.read([3])
    assert guesser.guess(8, price) == [3, 3, 3, 3]
    guesser.read([3, 5])
    guesser.learn(4, 0, [6, 7, 8], price)
    assert guesser.guess(8, price) == [6, 7, 8, 8]
    assert guesser.guess(2, price) == [6, 7]
    guesser.read([3, 5, 6])
    assert guesser.guess(8, price) == [7, 8, 8, 8]
    guesser.read([3, 5, 6, 9])
    assert guesser.guess(8, price) == [9, 9, 9, 9]


def test_a_price_is_what_a_step_takes_longer_for_each_run_that_guesses() -> None:
    price = Price()
    for _ in range(40):
        price.took(2, 0, 0, 0.010)
        price.took(2, 1, 4, 0.015)
        price.took(2, 0, 0, 0.020)  # the first one after does not count
    assert price.of(4) == pytest.approx(1.0)
    assert price.of(7) == pytest.approx(1.0)
    assert price.of(16) == pytest.approx(1.0)  # what is not known is as for fewer
    assert price.of(1) < 1


@pytest.mark.parametrize("sampler", SAMPLERS[:3])
def test_right_guesses_are_accepted_several_at_a_time(sampler: str) -> None:
    server = guessing()
    plain = Runner(server)
    expected = plain.steps(plain.sampler(sampler), 30)
    guest, run = begun(server, sampler, expected)
    before = server.scheduler.plans_sent
    server.drain()
    assert server.scheduler.plans_sent - before < 12
    assert guest.tokens(run) == expected
    guest.end(run, 30)
    assert sum(guest.used(guest.inputs)) == guest.length
    guest.append(expected[-1:])
    plain.append(expected[-1:])
    assert guest.steps(guest.sampler(sampler), 5) == plain.steps(plain.sampler(sampler), 5)


def test_wrong_guesses_wait_for_the_tokens_that_a_journal_has() -> None:
    server = guessing()
    expected = chosen(3, SAMPLERS[0])
    guest = Runner(server)
    sampler = guest.sampler(SAMPLERS[0])
    durable: Any = SimpleNamespace(tokens_of_next=lambda: expected)
    guest.instance.durable = durable
    run = guest.start(sampler, 30)
    guest.instance.durable = None
    for _ in range(2):  # its known tokens are guessed from its first one on
        server.step()
    guest.speculate(run, [7] * 30, 16)
    before = server.scheduler.plans_sent
    server.drain()
    assert server.scheduler.plans_sent - before < 4
    assert guest.tokens(run) == expected


@pytest.mark.parametrize("sampler", SAMPLERS[:3])
@pytest.mark.parametrize(("vocabulary", "most_plans"), [(1, 12), (2, 28), (1000, 40)])
def test_guesses_without_a_text(sampler: str, vocabulary: int, most_plans: int) -> None:
    # Of few tokens, some guesses are right.
    server = guessing(vocab_size=vocabulary)
    expected = chosen(1, sampler, vocabulary)
    guest, run = begun(server, sampler, [], 8, text=1)
    before = server.scheduler.plans_sent
    server.drain()
    assert server.scheduler.plans_sent - before < most_plans
    assert guest.tokens(run) == expected
    guest.end(run, 30)
    assert sum(guest.used(guest.inputs)) == guest.length


def test_an_instance_that_is_parked_while_its_guesses_are_verified() -> None:
    server = guessing()
    expected = chosen(3, SAMPLERS[1])
    guest, run = begun(
        server, SAMPLERS[1], [7 if i % 6 == 5 else t for i, t in enumerate(expected)]
    )
    got: list[int] = []
    for i in range(200):
        sent = server.send()
        if i % 2:
            server.scheduler.park(guest.instance)
        assert not (i % 2 and server.send())
        while server.results:
            server.deliver()
        got += guest.tokens(run)
        server.scheduler.resume(guest.instance)
        if not sent:
            break
    assert got == expected
    guest.end(run, 30)
    assert sum(guest.used(guest.inputs)) == guest.length


def test_a_step_that_fails_ends_the_run_that_guesses_in_it() -> None:
    for kind in ("embed_text", "embed_sampled", "forward", "sample"):
        server = guessing()
        expected = chosen(3, SAMPLERS[0])
        guest, run = begun(server, SAMPLERS[0], expected)
        while not server.worker.sizes or server.worker.sizes[-1][:1] != ("sample",):
            server.step()
        while guest.server.scheduler._runs._guesses._next == {}:
            assert server.step()
            server.scheduler.is_idle  # noqa: B018 - looks at what has changed
        server.worker.fail_kinds = {kind}
        server.step()
        server.worker.fail_kinds = set()
        got = guest.tokens(run)
        assert got == expected[: len(got)]
        with refused("internal"):
            guest.tokens(run)
        server.drain()
        assert not server.scheduler._runs.guesses


@pytest.mark.parametrize("at", [0, 2])
def test_a_choice_that_is_refused_among_right_guesses_ends_the_run_there(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    server = guessing()
    expected = chosen(3, SAMPLERS[0])
    guest, run = begun(server, SAMPLERS[0], expected)
    whole = server.worker.run
    before: list[int] = []  # tokens that had come

    def refusing(plan: Plan) -> PlanResult:
        result = whole(plan)
        for batch, answer in zip(plan.batches, result.results, strict=True):
            if isinstance(batch, Sample) and batch.drafts.size and not before:
                assert answer.values is not None
                before.append(len(guest.instance.queues[guest.queue].runs[run].tokens))
                answer.values.tokens = answer.values.tokens.copy()
                answer.values.tokens[at] = -1
                answer.refused = {at: "ruled out"}
        return result

    monkeypatch.setattr(server.worker, "run", refusing)
    server.drain()
    assert guest.tokens(run) == expected[: before[0] + at]
    with refused("invalid-argument"):
        guest.tokens(run)


def test_wrong_calls() -> None:
    server = Server()
    guest = Runner(server)
    run = guest.start(guest.sampler(SAMPLERS[0]), 5)
    for most in (0, 17):
        with refused("invalid-argument"):
            guest.speculate(run, [1], most)
    with refused("invalid-argument"):
        guest.speculate(run, [1, server.facts.vocab_size], 4)
    with refused("invalid-argument"):
        guest.speculate(run, [1] * (server.facts.max_position + 1), 4)
    with refused("invalid-handle"):
        guest.speculate(run + 1, [1], 4)
    guest.speculate(run, [], 4)
    server.drain()
    assert len(guest.tokens(run)) == 5
    guest.speculate(run, [1, 2], 4)  # over: nothing happens
    assert not server.scheduler._runs._guesses.guessers
