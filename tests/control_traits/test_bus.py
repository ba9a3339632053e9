"""Topics and work queues between real instances: nothing lost, nothing twice, nothing left
behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from support import bus_rules
from support.bus_rules import MAILBOX_BYTES, MESSAGING, STEPS, Handle
from support.instances import Instances, failure, is_ready, take_text
from support.rig import messaging

from pie_control.instances.instance import Instance, InstanceState
from pie_control.instances.mailbox import kept_bytes


class OneServer:
    """The world of one server: all that a call causes has happened when it returns."""

    patience = 0.0

    def __init__(self) -> None:
        self._instances = Instances(**MESSAGING)

    def launch(self, user: str = "ann") -> Instance:
        return self._instances.launch(user, mailbox_bytes=MAILBOX_BYTES)

    def id(self, who: Instance) -> str:
        return who.id

    def end(self, who: Instance) -> None:
        self._instances.end(who)

    def call(self, who: Instance, name: str, *args: Any) -> Any:
        interface = "runtime" if name.startswith("take") else "messaging"
        return self._instances.functions[interface, name.replace("_", "-")](who, *args)

    def cancel(self, who: Instance, future: Handle) -> None:
        who.futures.cancel(future)

    def ready(
        self, who: Instance, futures: Sequence[Handle], *, most: int | None = None
    ) -> list[Handle]:
        return [future for future in futures if is_ready(who, future)]

    def settle(self) -> None:
        """Ends have all of their effects at once."""

    def left(self) -> int:
        bus = self._instances.parts.messaging
        return len(bus._users) + len(bus._members)


class WorkQueueOfOneServer(bus_rules.WorkQueue):
    def __init__(self) -> None:
        self.world = OneServer()
        super().__init__()


TestWorkQueue = WorkQueueOfOneServer.TestCase


@given(STEPS)
def test_every_subscriber_gets_everything_once_and_in_order(steps: list[tuple[int, int]]) -> None:
    bus_rules.every_subscriber_gets_everything_once_and_in_order(OneServer(), steps)


@pytest.mark.parametrize("rule", bus_rules.RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[bus_rules.World], None]) -> None:
    rule(OneServer())


def test_queues_outlive_their_user_s_instances_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pie_control.api.messaging.functions.IDLE_BYTES", 2 * kept_bytes("a" * 100))
    instances = Instances()
    for user in ("ann", "bob", "cem"):
        instance = instances.launch(user)
        messaging.push(instance, "q", user[0] * 100)
        instances.end(instance)
    bob = instances.launch("bob")
    assert take_text(bob, messaging.pull(bob, "q")) == "b" * 100
    ann = instances.launch("ann")  # idle for longest: dropped when cem's last instance ended
    assert not is_ready(ann, messaging.pull(ann, "q"))
    cem = instances.launch("cem")
    assert is_ready(cem, messaging.pull(cem, "q"))


def test_messages_that_are_too_large_are_refused() -> None:
    instances = Instances()
    one = instances.launch()
    with failure("limit-exceeded", "2097153"):
        messaging.push(one, "t", "x" * (2**21 + 1))
    assert len(one.futures) == 0


def test_thousands_of_open_pulls_end_at_once() -> None:
    instances = Instances()
    one, other = instances.launch(), instances.launch()
    for _ in range(4096):
        messaging.pull(one, "q")
    waiting = messaging.pull(other, "q")
    messaging.push(other, "q", "for one")
    instances.end(one)
    assert one.state is InstanceState.FINISHED
    assert take_text(other, waiting) == "for one"


def test_what_is_not_read_goes_with_its_subscription_and_what_was_given_stays() -> None:
    instances = Instances()
    reader, writer = instances.launch(), instances.launch()
    kept = messaging.subscribe(reader, "kept")
    gone = messaging.subscribe(reader, "gone")
    given, waiting = messaging.next_message(reader, gone), messaging.next_message(reader, kept)
    for text in ("a", "b", "c"):
        messaging.broadcast(writer, "gone", text)
    budget = instances.parts.messaging._members[reader].budget
    assert budget.held == 3 * kept_bytes("a")
    messaging.unsubscribe(reader, gone)
    assert budget.held == kept_bytes("a")
    assert take_text(reader, given) == "a"
    assert budget.held == 0
    assert not is_ready(reader, waiting)
