"""Messages of a client that an instance asks for and gives up."""

from __future__ import annotations

import itertools

import pytest
from support.instances import Instances, failure, is_ready, take, take_text

from pie_control.api import session
from pie_control.instances.mailbox import Mailbox, kept_bytes


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_messages_that_are_given_up_keep_their_order(order: tuple[int, ...]) -> None:
    one = Instances().launch()
    futures = [session.receive(one) for _ in range(3)]
    for text in "abcd":
        one.texts.put(text)
    for number in order:
        assert is_ready(one, futures[number])
        one.futures.cancel(futures[number])
    assert [take_text(one, session.receive(one)) for _ in range(4)] == list("abcd")


def test_an_empty_message_that_is_given_up_is_not_lost() -> None:
    one = Instances().launch()
    one.texts.put("")
    one.futures.cancel(session.receive(one))
    assert take_text(one, session.receive(one)) == ""


@pytest.mark.parametrize("given_up", [False, True])
def test_a_message_fills_the_mailbox_until_its_future_is_taken(
    given_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pie_control.instances.instance.MAILBOX_MESSAGES", 2)
    one = Instances().launch(mailbox_bytes=1000)
    futures = [session.receive(one) for _ in range(3)]
    for text in "ab":
        assert one.texts.has_room
        one.texts.put(text)
    assert is_ready(one, futures[1])
    assert not one.texts.has_room
    with failure("would-block", f"2 messages ({2 * kept_bytes('a')} bytes)"):
        one.texts.put("c")
    if given_up:
        one.futures.cancel(futures[0])
        assert is_ready(one, futures[2]), "the next one has it"
        assert not one.texts.has_room
        futures = futures[1:]
    rooms: list[int] = []
    one.texts.when_room(lambda: rooms.append(len(rooms)))
    assert not rooms
    assert take_text(one, futures[0]) == ("b" if given_up else "a")
    assert rooms == [0]
    one.texts.put("c" * 200)
    assert not one.texts.has_room


def test_bytes_of_messages_in_futures_count() -> None:
    one = Instances().launch(mailbox_bytes=100)
    future = session.receive_blob(one)
    one.blobs.put(bytes(100))
    assert not one.blobs.has_room
    assert len(take(one, future)) == 100
    assert one.blobs.has_room


def test_a_mailbox_counts_what_was_lent_and_put_back() -> None:
    box: Mailbox[str] = Mailbox(3, 1000)
    for text in "abc":
        box.put(text)
    first, second = box.lend(), box.lend()
    assert (len(box), box.bytes, box.has_room) == (1, 3 * kept_bytes("c"), False)
    box.put_back(second)
    box.release(first)
    assert (len(box), box.bytes, box.has_room) == (2, 2 * kept_bytes("c"), True)
    assert [box.pop(), box.pop(), box.pop()] == ["b", "c", None]
