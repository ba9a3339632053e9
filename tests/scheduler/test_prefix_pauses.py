"""Conversations that wait for tools: for how long their cached pages are expected to rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.instances.instance import Account
from pie_control.interception.policy_input import Durations
from pie_control.prefix.pauses import Pauses
from pie_control.prefix.tree import Node, Pending, grow
from pie_control.resources.pools import PagePool

ANN = Account("ann", "chat", "")
WIDTH = 4  # bytes of a page's edge: one token


class Cache:
    """A tree, its pages, and what waits."""

    def __init__(self) -> None:
        self.pool = PagePool(256, 1)
        self.history = Durations()
        self.pauses = Pauses(self.pool, self.history)
        self.touched = np.zeros(256)
        self.root = Node(None, b"", -1)
        self.nodes: list[Node] = []
        self.now = 0.0

    def use(self, text: list[int]) -> Node:
        """A text is asked for, and computed as far as it was not there."""
        self.now += 1.0
        pages = list(range(len(self.nodes), len(self.nodes) + len(text)))
        tokens = np.array(text, np.int32).tobytes()
        path, added = grow(self.root, tokens, pages, WIDTH, len(text), Pending(0, 0))
        for page, node in enumerate(added, len(self.nodes)):
            node.page = page
        self.nodes += added
        self.touched[[node.page for node in path]] = self.now
        return path[-1]

    def wait(self, name: str, text: list[int], tool: str) -> None:
        self.pauses.begin(name, ANN, tool, self.use(text), self.now)

    def rests(self, text: list[int]) -> list[float]:
        """Of the pages of a text, from the first on."""
        found, node = self.pauses.rests(self.touched, self.now), self.root
        rests = []
        for token in text:
            node = node.children[np.int32(token).tobytes()]
            rests.append(float(found[node.page]))
        return rests


@pytest.fixture
def cache() -> Cache:
    cache = Cache()
    for tool, seconds in (("fast", 10.0), ("slow", 500.0)):
        cache.history.add("ann", tool, seconds)
    return cache


def test_what_two_texts_have_rests_until_the_first_goes_on(cache: Cache) -> None:
    """So does what subagents have of the conversation that waits for them."""
    cache.wait("main", [1, 2], "slow")
    cache.wait("first", [1, 2, 3], "fast")
    cache.wait("second", [1, 2, 4], "slow")
    assert cache.rests([1, 2, 3]) == [0.0, 0.0, 9.0], "the first two were asked for just now"
    cache.now += 4.0
    assert cache.rests([1, 2, 3]) == [4.0, 4.0, 5.0]
    cache.now += 3.0
    assert cache.rests([1, 2, 3]) == [2.0, 2.0, 2.0]
    assert cache.rests([1, 2, 4]) == [2.0, 2.0, 493.0]
    cache.pauses.end("first", "ann", cache.now)
    assert cache.rests([1, 2, 4]) == [7.0, 7.0, 493.0]


def test_a_wait_that_ends_is_what_the_next_one_expects(cache: Cache) -> None:
    cache.wait("one", [1], "new")
    cache.now += 90.0
    assert cache.rests([1]) == [90.0], "as long as so far, where nothing is known"
    assert cache.pauses.end("one", "ben", cache.now) is None, "it is not ben's"
    assert cache.pauses.end("one", None, cache.now) == (90.0, ANN)
    cache.wait("two", [2], "new")
    assert cache.rests([2]) == [90.0]
    cache.pool.stamps[:] += 1
    assert cache.rests([2]) == [0.0], "its pages have gone, and others are in their places"


def test_who_asks_for_a_conversations_own_pages_goes_on_with_it(cache: Cache) -> None:
    """Though nobody tells: clients' ids may be their own."""
    cache.wait("one", [1, 2], "new")
    cache.wait("two", [1, 3], "new")
    one, two = (cache.nodes[at].page for at in (1, 2))
    cache.now += 7.0
    cache.pauses.asked("ann", np.array([0], np.int32), cache.now)
    cache.pauses.asked("ben", np.array([0, one], np.int32), cache.now)
    assert len(cache.pauses) == 2
    cache.pauses.asked("ann", np.array([0, two], np.int32), cache.now)
    assert cache.history.remaining("ann", "new", 0.0) == (7.0, 7.0)
    assert cache.pauses.soon("ann", cache.now, lambda pages: 9.0).nonzero()[0].tolist() == [0, one]
    assert not cache.pauses.soon("ann", cache.now, lambda pages: 0.0).any()


def test_who_asks_for_what_is_left_of_a_conversation_may_be_another(cache: Cache) -> None:
    cache.wait("one", [1, 2, 3, 4], "new")
    cache.pool.stamps[2:] += 1
    cache.pauses.asked("ann", np.array([0, 1], np.int32), cache.now)
    assert len(cache.pauses) == 1
    cache.pool.stamps[2] -= 1
    cache.pauses.asked("ann", np.array([0, 1, 2], np.int32), cache.now)
    assert not len(cache.pauses)


TEXTS = st.lists(st.integers(1, 3), min_size=1, max_size=5)
TOOLS = st.sampled_from([None, "fast", "slow", "unknown"])


@given(st.lists(st.tuples(TEXTS, TOOLS, st.integers(0, 5)), min_size=1, max_size=12))
def test_no_page_goes_before_those_behind_it(uses: list[tuple[list[int], str | None, int]]) -> None:
    cache = Cache()
    cache.history.add("ann", "fast", 2.0)
    cache.history.add("ann", "slow", 50.0)
    for at, (text, tool, ends) in enumerate(uses):
        cache.pauses.end(str(at - ends), "ann", cache.now)
        if tool is None:
            cache.use(text)
        else:
            cache.wait(str(at), text, tool)
        rests = cache.pauses.rests(cache.touched, cache.now)
        for node in cache.nodes:
            if node.parent is not None and node.parent.parent is not None:
                assert rests[node.parent.page] <= rests[node.page]
