"""Messages of a client that an instance asks for and gives up."""

from __future__ import annotations

import itertools

import pytest
from instances import Instances, is_ready, take_text

from pie_control.api import session


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_messages_that_are_given_up_keep_their_order(order: tuple[int, ...]) -> None:
    one = Instances().launch()
    futures = [session.receive(one) for _ in range(3)]
    for text in "abcd":
        one.texts.put(text, 1)
    for number in order:
        assert is_ready(one, futures[number])
        one.futures.cancel(futures[number])
    assert [take_text(one, session.receive(one)) for _ in range(4)] == list("abcd")


def test_an_empty_message_that_is_given_up_is_not_lost() -> None:
    one = Instances().launch()
    one.texts.put("", 0)
    one.futures.cancel(session.receive(one))
    assert take_text(one, session.receive(one)) == ""
