"""Topics and work queues between real instances (B in `docs/contract.md`): nothing lost, nothing
twice, nothing left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import instances
from support.instances import Instances, failure, take_text
from support.rig import messaging

from pie_control.instances.instance import Instance, InstanceState
from pie_control.instances.mailbox import kept_bytes

MESSAGING: dict[str, Any] = {
    "queue_messages": 6,
    "box_messages": 4,
    "user_bytes": 20_000,  # half of it in one queue
    "subscriptions": 4,
    "subscribers": 6,
    "queues": 3,
}
MAILBOX_BYTES = 10_000

Handle: TypeAlias = int


class World:
    """Instances whose guests are the tests. Each call is a function of the contract."""

    def __init__(self) -> None:
        self._instances = Instances(**MESSAGING)

    def launch(self, user: str = "ann") -> Instance:
        return self._instances.launch(user, mailbox_bytes=MAILBOX_BYTES)

    def end(self, who: Instance) -> None:
        self._instances.end(who)

    def call(self, who: Instance, name: str, *args: Any) -> Any:
        interface = "runtime" if name.startswith("take") else "messaging"
        return self._instances.functions[interface, name.replace("_", "-")](who, *args)

    def ready(self, who: Instance, futures: Sequence[Handle]) -> list[Handle]:
        return [future for future in futures if instances.is_ready(who, future)]

    def left(self) -> int:
        """Users of whom something is kept."""
        bus = self._instances.parts.messaging
        return len(bus._users) + len(bus._members)


@pytest.fixture
def world() -> World:
    return World()


def take(world: World, who: Instance, future: Handle) -> str:
    """Takes a message, once it is there."""
    assert world.ready(who, [future]) == [future]
    text: str = world.call(who, "take_text", future)
    return text


def receive(world: World, who: Instance, subscription: Handle) -> str:
    """The next message of a subscription."""
    return take(world, who, world.call(who, "next_message", subscription))


def is_ready(world: World, who: Instance, future: Handle) -> bool:
    """Whether it is, with all that has happened before."""
    return world.ready(who, [future]) == [future]


class WorkQueue(RuleBasedStateMachine):
    """Pushes, pulls, takes, cancels and ends in any order, against a list of what there should
    be.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.alive = [self.world.launch() for _ in range(3)]
        self.watcher = self.world.launch()  # keeps the user, whoever ends
        self.pulls: list[tuple[Instance, Handle]] = []
        self.pushed: list[str] = []
        self.taken: list[str] = []

    def one(self, number: int) -> Instance:
        return self.alive[number % len(self.alive)]

    @property
    def there(self) -> int:
        return len(self.pushed) - len(self.taken)

    @rule(who=st.integers(0, 9))
    def push(self, who: int) -> None:
        text = str(len(self.pushed))
        if self.there >= MESSAGING["queue_messages"]:
            with failure("would-block", "'jobs'", "push-room"):
                self.world.call(self.one(who), "push", "jobs", text)
        else:
            self.world.call(self.one(who), "push", "jobs", text)
            self.pushed.append(text)

    @rule(who=st.integers(0, 9))
    def pull(self, who: int) -> None:
        one = self.one(who)
        self.pulls.append((one, self.world.call(one, "pull", "jobs")))

    @precondition(lambda self: self.pulls)
    @rule(which=st.integers(0, 99), cancel=st.booleans())
    def take_or_cancel(self, which: int, cancel: bool) -> None:
        one, handle = self.pulls.pop(which % len(self.pulls))
        if cancel:
            one.futures.cancel(handle)
        elif is_ready(self.world, one, handle):
            self.taken.append(self.world.call(one, "take_text", handle))
        else:
            self.pulls.append((one, handle))

    @rule(who=st.integers(0, 9))
    def end_and_launch(self, who: int) -> None:
        gone = self.one(who)
        self.world.end(gone)
        self.alive[self.alive.index(gone)] = self.world.launch()
        self.pulls = [(i, h) for i, h in self.pulls if i is not gone]

    @invariant()
    def as_many_pulls_are_ready_as_can_be(self) -> None:
        """And earlier ones of an instance before later ones."""
        found = 0
        for one in self.alive:
            pulls = sorted(handle for who, handle in self.pulls if who is one)
            ready = self.world.ready(one, pulls)
            assert ready == pulls[: len(ready)]
            found += len(ready)
        assert found == min(len(self.pulls), self.there)

    def teardown(self) -> None:
        for one, handle in self.pulls:
            one.futures.cancel(handle)
        rest: list[str] = []
        while self.there > len(rest):
            rest.append(
                take(self.world, self.watcher, self.world.call(self.watcher, "pull", "jobs"))
            )
        assert rest == sorted(rest, key=int)  # what was given back is in its old place
        assert Counter(self.taken + rest) == Counter(self.pushed)
        for one in (*self.alive, self.watcher):
            self.world.end(one)
        assert not self.world.left()


TestWorkQueue = WorkQueue.TestCase

STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=60)


class _Reader:
    """A subscriber as the rule has it."""

    def __init__(self, who: Instance) -> None:
        self.who = who
        self.handle: Handle | None = None
        self.expected: list[str] = []
        self.futures: list[Handle] = []


@given(STEPS)
def test_every_subscriber_gets_everything_once_and_in_order(steps: list[tuple[int, int]]) -> None:
    world = World()
    sender = world.launch()
    readers = [_Reader(world.launch()) for _ in range(3)]
    for number, (what, which) in enumerate(steps):
        _step(world, sender, readers, readers[which], what, str(number))
    for one in (sender, *(reader.who for reader in readers)):
        world.end(one)
    assert not world.left()


def _step(
    world: World, sender: Instance, readers: list[_Reader], one: _Reader, what: int, text: str
) -> None:
    if what == 0 and one.handle is None:
        one.handle = world.call(one.who, "subscribe", "news")
    elif what == 1 and one.handle is not None:
        world.call(one.who, "unsubscribe", one.handle)
        given = min(len(one.futures), len(one.expected))
        for number, future in enumerate(one.futures):
            if number < given:
                assert take(world, one.who, future) == one.expected[number]
            else:
                with failure("cancelled"):
                    take(world, one.who, future)
        one.handle, one.expected, one.futures = None, [], []
    elif what == 2 and one.handle is not None:
        one.futures.append(world.call(one.who, "next_message", one.handle))
    elif what == 3 and one.futures and one.expected:
        assert take(world, one.who, one.futures.pop(0)) == one.expected.pop(0)
    elif what == 4 and one.futures:
        one.who.futures.cancel(one.futures.pop())  # the newest: order stays
    elif what == 5:
        subscribed = [reader for reader in readers if reader.handle is not None]
        if any(len(reader.expected) >= MESSAGING["box_messages"] for reader in subscribed):
            with failure("would-block", "'news'"):
                world.call(sender, "broadcast", "news", text)
        else:
            assert world.call(sender, "broadcast", "news", text) == len(subscribed)
            for reader in subscribed:
                reader.expected.append(text)


def test_a_full_box_is_named_and_nobody_gets_the_message(world: World) -> None:
    sender, slow, fast = (world.launch() for _ in range(3))
    slow_box, fast_box = (world.call(one, "subscribe", "t") for one in (slow, fast))
    for text in "abcd":
        world.call(sender, "broadcast", "t", text)
        assert receive(world, fast, fast_box) == text
    with failure("would-block", slow.id, "4 messages"):
        world.call(sender, "broadcast", "t", "e")
    room = world.call(sender, "broadcast_room", "t")
    assert not is_ready(world, sender, room)
    unread = world.call(fast, "next_message", fast_box)
    assert not is_ready(world, fast, unread)
    message = world.call(slow, "next_message", slow_box)
    assert world.ready(slow, [message]) == [message]
    assert not is_ready(world, sender, room)  # held by a future, it still takes room
    assert take(world, slow, message) == "a"
    assert world.ready(sender, [room]) == [room]
    world.call(sender, "take", room)
    assert world.call(sender, "broadcast", "t", "e") == 2
    assert take(world, fast, unread) == "e"
    for one in (sender, slow, fast):
        world.end(one)
    assert not world.left()


def test_room_comes_when_the_slow_one_leaves_or_ends(world: World) -> None:
    sender, slow = world.launch(), world.launch()
    for leave in (lambda h: world.call(slow, "unsubscribe", h), lambda h: world.end(slow)):
        handle = world.call(slow, "subscribe", "t")
        for _ in range(MESSAGING["box_messages"]):
            world.call(sender, "broadcast", "t", "x")
        room = world.call(sender, "broadcast_room", "t")
        assert not is_ready(world, sender, room)
        leave(handle)
        assert world.ready(sender, [room]) == [room]
        sender.futures.cancel(room)
    world.end(sender)


def test_bytes_are_bounded_per_instance_and_per_user(world: World) -> None:
    one, other = world.launch(), world.launch()
    world.call(one, "push", "a", "x" * 10_000)
    with failure("would-block", "'a'"):
        world.call(other, "push", "a", "")
    world.call(other, "push", "b", "x" * 10_000)
    for topic in ("c", "b"):  # a new queue, and one that is full like all of them
        with failure("would-block", "in 2 topics"):
            world.call(other, "push", topic, "")
    room = world.call(other, "push_room", "c")
    assert not is_ready(world, other, room)
    take(world, one, world.call(one, "pull", "a"))
    assert world.ready(other, [room]) == [room]
    world.call(other, "push", "c", "")
    for topic in ("s", "t"):
        world.call(one, "subscribe", topic)
    world.call(other, "broadcast", "s", "x" * 10_000)
    with failure("would-block", one.id):
        world.call(other, "broadcast", "t", "")
    for topic in ("b", "c"):
        take(world, one, world.call(one, "pull", topic))
    world.end(one)
    world.end(other)
    assert not world.left()


def test_users_are_apart(world: World) -> None:
    ann, bob = world.launch(), world.launch("bob")
    world.call(bob, "subscribe", "t")
    assert world.call(ann, "broadcast", "t", "secret") == 0
    pull = world.call(bob, "pull", "q")
    world.call(ann, "push", "q", "secret")
    assert not is_ready(world, bob, pull)
    assert take(world, ann, world.call(ann, "pull", "q")) == "secret"
    world.end(ann)
    world.end(bob)


def test_wrong_arguments_open_nothing(world: World) -> None:
    one = world.launch()
    for topic in ("", "x" * 257, "é" * 129):
        for call in ("subscribe", "pull", "push_room", "broadcast_room"):
            with failure("invalid-argument", "topic"):
                world.call(one, call, topic)
        for send in ("push", "broadcast"):
            with failure("invalid-argument", "topic"):
                world.call(one, send, topic, "")
    for handle in (0, 1, 2**32 - 1):
        with failure("invalid-handle"):
            world.call(one, "next_message", handle)
        with failure("invalid-handle"):
            world.call(one, "unsubscribe", handle)
    handles = [world.call(one, "subscribe", topic) for topic in "abcd"]
    with failure("limit-exceeded", "4 subscriptions"):
        world.call(one, "subscribe", "e")
    world.call(one, "unsubscribe", handles[0])
    with failure("invalid-handle"):
        world.call(one, "next_message", handles[0])
    assert world.call(one, "subscribe", "e") > handles[-1]
    for topic in ("a", "b", "c"):
        world.call(one, "push", topic, "")
    with failure("limit-exceeded", "3 queues"):
        world.call(one, "push", "d", "")
    for topic in ("a", "b", "c"):
        take(world, one, world.call(one, "pull", topic))
    world.end(one)
    assert not world.left()


def test_subscriptions_of_one_topic_are_bounded(world: World) -> None:
    one, two = world.launch(), world.launch()
    for who in (one, one, one, two, two, two):
        world.call(who, "subscribe", "news")
    with failure("limit-exceeded", "'news'", "6 subscriptions", "several topics"):
        world.call(two, "subscribe", "news")
    bob = world.launch("bob")
    world.call(bob, "subscribe", "news")
    world.end(one)
    world.call(two, "subscribe", "news")
    assert world.call(two, "broadcast", "news", "x") == 4
    world.end(two)
    world.end(bob)


def test_room_of_one_topic_comes_with_what_is_read_of_another(world: World) -> None:
    for how in ("take", "unsubscribe", "end"):
        sender, reader = world.launch(), world.launch()
        one, two = (world.call(reader, "subscribe", topic) for topic in ("one", "two"))
        for _ in range(2):
            world.call(sender, "broadcast", "one", "x" * 5000)
        with failure("would-block"):
            world.call(sender, "broadcast", "two", "x")
        rooms = [world.call(sender, "broadcast_room", topic) for topic in ("one", "two")]
        assert not world.ready(sender, rooms)
        if how == "take":
            world.call(reader, "unsubscribe", two)
            assert world.ready(sender, rooms) == rooms[1:]
            receive(world, reader, one)
        elif how == "unsubscribe":
            world.call(reader, "unsubscribe", one)
        else:
            world.end(reader)
        assert world.ready(sender, rooms) == rooms, how
        if how == "unsubscribe":
            assert world.call(sender, "broadcast", "two", "x") == 1
        world.end(sender)
        if how != "end":
            world.end(reader)
    assert not world.left()


def test_queues_outlive_their_user_s_instances_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pie_control.api.messaging.functions.IDLE_BYTES", 2 * kept_bytes("a" * 100))
    made = Instances()
    for user in ("ann", "bob", "cem"):
        instance = made.launch(user)
        messaging.push(instance, "q", user[0] * 100)
        made.end(instance)
    bob = made.launch("bob")
    assert take_text(bob, messaging.pull(bob, "q")) == "b" * 100
    ann = made.launch("ann")  # idle for longest: dropped when cem's last instance ended
    assert not instances.is_ready(ann, messaging.pull(ann, "q"))
    cem = made.launch("cem")
    assert instances.is_ready(cem, messaging.pull(cem, "q"))


def test_messages_that_are_too_large_are_refused() -> None:
    made = Instances()
    one = made.launch()
    with failure("limit-exceeded", "2097153"):
        messaging.push(one, "t", "x" * (2**21 + 1))
    assert len(one.futures) == 0


def test_thousands_of_open_pulls_end_at_once() -> None:
    made = Instances()
    one, other = made.launch(), made.launch()
    for _ in range(4096):
        messaging.pull(one, "q")
    waiting = messaging.pull(other, "q")
    messaging.push(other, "q", "for one")
    made.end(one)
    assert one.state is InstanceState.FINISHED
    assert take_text(other, waiting) == "for one"
