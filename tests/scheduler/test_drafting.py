"""Runs that guess what another run chooses: the tokens are theirs alone, in fewer steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler.test_runs import SAMPLERS, Runner, chosen
from support.scheduler_fixtures import Server, refused


def server_of(vocabulary: int) -> Server:
    return Server(
        kv_pages=300,
        embeds=200,
        max_batch_tokens=100,
        max_batch_commands=50,
        samplers=40,
        draft_embeds=40,
        vocab_size=vocabulary,
    )


class Pair:
    """A guest's two texts, of which the second one drafts what follows the first."""

    def __init__(
        self,
        server: Server,
        sampler: str,
        texts: tuple[int, int],
        tokens: int,
        most: int,
        late: Callable[[], object] = lambda: None,
    ) -> None:
        self.expected = chosen(texts[0], sampler, server.facts.vocab_size)[:tokens]
        self.server = server
        self.guest = Runner(server, texts[0])
        self.drafter = Runner(server, texts[1], self.guest)
        server.drain()
        self.run = self.guest.start(self.guest.sampler(sampler), tokens)
        self.draft_run = self.drafter.start(self.drafter.sampler(sampler), tokens)
        late()  # the guest's turn may end here, and both runs begin
        draft = self.drafter.instance.queues[self.drafter.queue].runs[self.draft_run]
        self.is_new = not draft.over and server.scheduler._runs.asked(draft) == 1
        self.guest.speculate_with(self.run, self.drafter, self.draft_run, most)
        self.got: list[int] = []

    def read(self) -> None:
        self.got += self.guest.tokens(self.run)

    def close(self) -> None:
        """Both end with what they agree about, and hold that."""
        assert self.got == self.expected
        drafted = self.drafter.tokens(self.draft_run)
        pairs = zip(drafted, self.expected, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(drafted))
        if self.is_new:  # else the guest's run may have gone on without it meanwhile
            assert same >= min(len(self.expected), len(drafted)) - 1
        self.guest.end(self.run, len(self.got))
        self.drafter.end(self.draft_run, same)
        for one in (self.guest, self.drafter):
            assert sum(one.used(one.inputs)) == one.length
        self.server.drain()


@pytest.mark.parametrize("sampler", SAMPLERS[:3])
def test_right_drafts_are_accepted_several_at_a_time(sampler: str) -> None:
    pair = Pair(server_of(1000), sampler, (3, 3), 30, 8)
    before = [size[1] for size in pair.server.worker.sizes if size[0] == "forward"]
    pair.server.drain()
    pair.read()
    forwards = [size for size in pair.server.worker.sizes if size[0] == "forward"][len(before) :]
    verifications = [size for size in forwards if size[2] > size[1]]
    assert len(verifications) < 10
    pair.close()


def test_after_it_the_drafter_holds_what_was_chosen() -> None:
    pair = Pair(server_of(2), SAMPLERS[1], (2, 1), 30, 4)
    pair.server.drain()
    pair.read()
    pair.close()
    follows = pair.drafter
    follows.append(pair.expected[follows.length - 1 :])
    plain = Runner(pair.server, 1)
    plain.append(pair.expected)
    sampler = SAMPLERS[0]
    assert follows.steps(follows.sampler(sampler), 4) == plain.steps(plain.sampler(sampler), 4)


@settings(max_examples=60)
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from(SAMPLERS[:3]),
            st.tuples(st.integers(1, 9), st.integers(1, 9)),
            st.integers(2, 30),
            st.integers(1, 16),
        ),
        min_size=1,
        max_size=4,
    ),
    vocabulary=st.sampled_from([2, 3, 1000]),
    moves=st.lists(st.integers(0, 4), max_size=60),
    late=st.lists(st.booleans(), max_size=8),
)
def test_drafts_change_no_token(
    jobs: list[tuple[str, tuple[int, int], int, int]],
    vocabulary: int,
    moves: list[int],
    late: list[bool],
) -> None:
    server = server_of(vocabulary)
    pairs = []

    def begin() -> None:
        for sends in late:
            if sends and len(server.results) < 2:
                server.send(3)
            elif server.results:
                server.deliver()

    for sampler, (text, other), tokens, most in jobs:
        texts = (min(text, vocabulary), min(other, vocabulary))
        pairs.append(Pair(server, sampler, texts, tokens, most, begin))
    for move in moves:
        owner = pairs[move % len(pairs)].guest.instance
        if move == 3:
            server.scheduler.park(owner)
        elif move == 4:
            server.scheduler.resume(owner)
        elif move and len(server.results) < 2:
            server.send()
        elif server.results:
            server.deliver()
        for pair in pairs:
            pair.read()
    for pair in pairs:
        server.scheduler.resume(pair.guest.instance)
    for _ in range(500):
        if all(len(pair.got) == len(pair.expected) for pair in pairs):
            break
        server.step()
        for pair in pairs:
            pair.read()
    for pair in pairs:
        pair.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_goes_on_without_a_drafter_that_ends_or_fails(fails: bool) -> None:
    pair = Pair(server_of(1000), SAMPLERS[1], (3, 5 if fails else 3), 20, 4)
    run = pair.drafter.instance.queues[pair.drafter.queue].runs[pair.draft_run]
    for _ in range(6):
        pair.server.step()
    if fails:
        run.end(None)
    else:
        pair.drafter.end(pair.draft_run, 0)
    pair.server.drain()
    pair.read()
    assert pair.got == pair.expected


def test_what_cannot_be() -> None:
    pair = Pair(server_of(1000), SAMPLERS[0], (3, 3), 20, 4)
    guest, drafter = pair.guest, pair.drafter
    for most in (0, 17):
        with refused("invalid-argument"):
            guest.speculate_with(pair.run, drafter, pair.draft_run, most)
    with refused("invalid-argument"):  # drafts already
        guest.speculate_with(pair.run, drafter, pair.draft_run, 4)
    with refused("invalid-argument"):
        drafter.speculate(pair.draft_run, [1], 4)
    with refused("invalid-argument"):
        drafter.speculate_with(pair.draft_run, guest, pair.run, 4)
    with refused("invalid-argument"):
        guest.speculate_with(pair.run, guest, pair.run, 4)
    with refused("invalid-handle"):
        guest.speculate_with(pair.run, drafter, pair.draft_run + 1, 4)
    other = Runner(pair.server, 3, guest)
    begun = other.start(other.sampler(SAMPLERS[0]), 5)
    pair.server.drain()
    assert len(other.tokens(begun)) == 5
    with refused("invalid-argument"):
        guest.speculate_with(pair.run, other, begun, 4)
