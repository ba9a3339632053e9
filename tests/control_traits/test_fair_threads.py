"""Threads that are shared out fairly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.fairness import FairThreads, Owner

SECONDS = 30.0  # until a test is given up


def test_what_one_user_has_waiting_holds_nobody_else_up() -> None:
    threads = FairThreads(3, of_user=2, name="test")
    go, done = threading.Event(), threading.Semaphore(0)
    busy = threading.Semaphore(0)

    def long() -> None:
        busy.release()
        go.wait(SECONDS)
        done.release()

    for number in range(100):
        threads.submit(Owner("bomber", f"i{number % 7}"), long)
    for _ in range(2):
        assert busy.acquire(timeout=SECONDS)
    assert not busy.acquire(timeout=0.05), "a third one of this user does not run"
    for _ in range(3):
        others = threading.Event()
        threads.submit(Owner("other", "i"), others.set)
        assert others.wait(SECONDS), "done while all of that waits"
    go.set()
    for _ in range(100):
        assert done.acquire(timeout=SECONDS)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), max_size=30),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_all_is_done_each_in_its_order(
    owners: list[tuple[str, str]], count: int, most: int
) -> None:
    threads = FairThreads(count, of_user=min(count, most), name="test")
    done: list[tuple[Owner, int]] = []
    left = threading.Semaphore(0)

    def work(owner: Owner, number: int) -> None:
        done.append((owner, number))
        left.release()

    for number, pair in enumerate(owners):
        threads.submit(Owner(*pair), partial(work, Owner(*pair), number))
    for _ in owners:
        assert left.acquire(timeout=SECONDS)
    assert sorted(number for _, number in done) == list(range(len(owners)))
    if count == 1:
        for owner in {owner for owner, _ in done}:
            mine = [number for other, number in done if other == owner]
            assert mine == sorted(mine)


def test_users_take_turns_and_so_do_a_users_instances() -> None:
    threads = FairThreads(1, of_user=1, name="test")
    order: list[str] = []
    go, over = threading.Event(), threading.Event()
    threads.submit(Owner("first", "i"), partial(go.wait, SECONDS))

    def note(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    for user, instance in (("a", "x"), ("a", "x"), ("a", "x"), ("a", "y"), ("b", "z"), ("b", "z")):
        threads.submit(Owner(user, instance), note(user + instance))
    threads.submit(Owner("last", "i"), over.set)
    go.set()
    assert over.wait(SECONDS)
    while len(order) < 6:
        over.wait(0.01)
    assert sorted(order[:2]) == ["ax", "bz"]
    assert order.index("ay") < order.index("ax", order.index("ax") + 1)
