"""Which responses are kept, and for whom."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pie_gateway.openai import stored
from pie_gateway.openai.stored import Responses, Stored
from pie_gateway.problems import Problem


def test_who_has_most_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MOST_BYTES", 100)
    monkeypatch.setattr(stored, "BESIDE", 0)
    kept = Responses(Path())
    kept.keep("ann", "a", Stored(b"." * 20, b""))
    for number in range(50):
        kept.keep("bob", f"{number}", Stored(b"." * 20, b""))
        kept.keep("bob", f"{number}", Stored(b"." * 10, b""))  # of the same name
    assert kept.find("ann", "a").size == 20
    assert kept.find("bob", "43").size == 10
    for user, name in (("bob", "42"), ("ann", "49"), ("bob", "a")):
        with pytest.raises(Problem, match="is kept"):
            kept.find(user, name)
    kept.forget("ann", "a")
    with pytest.raises(Problem, match="is kept"):
        kept.forget("ann", "a")


def test_items_are_found_by_their_names() -> None:
    kept = Responses(Path())
    for number in range(3):
        items = b'[{"id": "same", "n": %d}, {"id": "a%d"}]' % (number, number)
        kept.keep("ann", f"r{number}", Stored(b"{}", items, names=("same", f"a{number}")))
    found = kept.find_items("ann", {"same": "input[0]", "a0": "input[1]"})
    assert found == {"same": {"id": "same", "n": 2}, "a0": {"id": "a0"}}
    kept.forget("ann", "r0")
    for user, name in (("ann", "a0"), ("bob", "same")):
        with pytest.raises(Problem, match="no kept response has an item"):
            kept.find_items(user, {name: "input[0]"})


@pytest.fixture
def short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("short_turns")
def test_requests_of_several_threads_keep_and_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is long is kept by a thread of its own, while the loop tells what each user has."""
    monkeypatch.setattr(stored, "MOST_BYTES", 50_000)
    kept = Responses(Path())

    def keep_and_find(thread: int) -> None:
        for number in range(800):
            user, name = f"user{thread}-{number % 200}", f"r{number}"
            kept.keep(user, name, Stored(b"{}", b'[{"id": "a"}, {"id": []}]', names=("a",)))
            with contextlib.suppress(Problem):  # it may have made room
                assert kept.find_items(user, {"a": "input[0]"}) == {"a": {"id": "a"}}

    with ThreadPoolExecutor(3) as threads:
        working = [threads.submit(keep_and_find, thread) for thread in range(3)]
        while not all(each.done() for each in working):
            kept.bytes_of()
        for each in working:
            each.result()
    assert 0 < sum(kept.bytes_of().values()) <= 50_000
