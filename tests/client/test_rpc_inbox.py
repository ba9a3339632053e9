"""Which message of which client is handled next."""

from __future__ import annotations

from typing import Any

import pytest

from pie_control.rpc import inbox
from pie_control.rpc.inbox import InboundMessage, Inbox
from pie_py.wire.rpc import Ping, Request

MS = 1_000_000


def letter(user: str, peer: int, method: str = "logs", size: int = 100) -> InboundMessage:
    return InboundMessage(user, bytes([peer]), Request(1, 0, method, {}), size)


def handled(box: Inbox, count: int, costs: dict[str, int]) -> list[InboundMessage]:
    """The next messages, each at its user's cost."""
    taken = []
    for _ in range(count):
        found = box.take()
        assert found is not None
        box.charge(found, costs[found.user])
        taken.append(found)
    return taken


def test_a_message_waits_for_one_of_a_user_who_has_twenty_connections() -> None:
    box = Inbox(lambda user: 1.0)
    for number in range(400):
        box.put(letter("mallory", number % 20))
    costs = {"mallory": 3 * MS, "victim": MS}
    handled(box, 30, costs)
    for _ in range(10):
        box.put(letter("victim", 99))
        assert "victim" in [each.user for each in handled(box, 2, costs)]


def test_connections_of_a_user_take_turns_and_keep_their_order() -> None:
    box = Inbox(lambda user: 1.0)
    sent = [letter("ann", 1, method) for method in "abcdef"]
    for each in sent:
        box.put(each)
    other = letter("ann", 2)
    box.put(other)
    taken = handled(box, 7, {"ann": MS})
    assert taken.index(other) <= 1
    assert [each for each in taken if each is not other] == sent
    assert box.take() is None


def test_a_user_with_a_higher_weight_has_more_of_the_time() -> None:
    box = Inbox(lambda user: 3.0 if user == "paying" else 1.0)
    for _ in range(100):
        box.put(letter("paying", 1))
        box.put(letter("other", 2))
    taken = handled(box, 80, {"paying": MS, "other": MS})
    assert 58 <= sum(each.user == "paying" for each in taken) <= 62


@pytest.mark.parametrize("limits", [{"MOST_MESSAGES": 10}, {"MOST_BYTES": 1000}])
def test_who_has_much_here_holds_up_what_zeromq_has(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(inbox, name, value)
    box = Inbox(lambda user: 1.0)
    for _ in range(9):
        box.put(letter("mallory", 1))
        box.put(letter("victim", 2))
        assert not box.full
    box.put(letter("mallory", 1))
    assert box.full
    while box.full:
        handled(box, 1, {"mallory": MS, "victim": MS})
    assert len(box.waiting) in (17, 18)


@pytest.mark.parametrize(
    ("content", "brings"),
    [
        (Request(1, 0, "launch", {}), True),
        (Request(1, 0, "send", {}), True),
        (Request(1, 0, "logs", {}), False),
        (Ping(), False),
        (None, False),
    ],
)
def test_only_some_messages_may_bring_commands(content: Any, brings: bool) -> None:
    box = Inbox(lambda user: 1.0)
    assert not box.with_commands
    box.put(InboundMessage("ann", b"1", content, 10))
    assert bool(box.with_commands) is brings
    box.take()
    assert not box.with_commands
