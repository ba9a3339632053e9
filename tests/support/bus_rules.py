"""What holds of topics and work queues (B in `docs/contract.md`), wherever the instances run.

Each rule is a test of a world: one server, or nodes of a cluster.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pie_control.errors import ApiError
from support.instances import failure

# Of all worlds.
MESSAGING: dict[str, Any] = {
    "queue_messages": 6,
    "box_messages": 4,
    "user_bytes": 20_000,  # half of it in one queue
    "subscriptions": 4,
    "subscribers": 6,
    "queues": 3,
}
MAILBOX_BYTES = 10_000
PULLS = 500

Handle: TypeAlias = int


class World(Protocol):
    """Instances whose guests are the tests. Each call is a function of the contract."""

    patience: float  # seconds after which a call or an end has had all of its effects elsewhere

    def launch(self, user: str = "ann") -> Any:
        """Another instance, wherever there is room."""

    def id(self, who: Any) -> str:
        """The instance's."""

    def end(self, who: Any) -> None:
        """Ends an instance."""

    def call(self, who: Any, name: str, *args: Any) -> Any:
        """Calls a function; raises ApiError."""

    def cancel(self, who: Any, future: Handle) -> None:
        """Gives a future up."""

    def ready(
        self, who: Any, futures: Sequence[Handle], *, most: int | None = None
    ) -> list[Handle]:
        """Those that are ready.

        Where that is told later than by the call that caused it, this waits until `most` of them
        are, by default all.
        """

    def settle(self) -> None:
        """Waits until what instances that have ended had taken has gone back."""

    def left(self) -> int:
        """Users of whom something is kept."""


def take(world: World, who: Any, future: Handle) -> str:
    """Takes a message, once it is there."""
    assert world.ready(who, [future]) == [future]
    text: str = world.call(who, "take_text", future)
    return text


def receive(world: World, who: Any, subscription: Handle) -> str:
    """The next message of a subscription."""
    return take(world, who, world.call(who, "next_message", subscription))


def is_ready(world: World, who: Any, future: Handle) -> bool:
    """Whether it is, with all that has happened before."""
    return world.ready(who, [future], most=0) == [future]


class WorkQueue(RuleBasedStateMachine):
    """Pushes, pulls, takes, cancels and ends in any order, against a list of what there should
    be.
    """

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.alive = [self.world.launch() for _ in range(3)]
        self.watcher = self.world.launch()  # keeps the user, whoever ends
        self.pulls: list[tuple[Any, Handle]] = []
        self.pushed: list[str] = []
        self.taken: list[str] = []

    def one(self, number: int) -> Any:
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
            self.world.cancel(one, handle)
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
        wanted, end = min(len(self.pulls), self.there), time.monotonic() + self.world.patience
        while (found := self._ready()) != wanted and time.monotonic() < end:
            pass
        assert found == wanted

    def _ready(self) -> int:
        found = 0
        for one in self.alive:
            pulls = sorted(handle for who, handle in self.pulls if who is one)
            ready = self.world.ready(one, pulls, most=0)
            assert ready == pulls[: len(ready)]
            found += len(ready)
        return found

    def teardown(self) -> None:
        for one, handle in self.pulls:
            self.world.cancel(one, handle)
        self.world.settle()
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


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=60)


class _Reader:
    """A subscriber as the rule has it."""

    def __init__(self, who: Any) -> None:
        self.who = who
        self.handle: Handle | None = None
        self.expected: list[str] = []
        self.futures: list[Handle] = []


def every_subscriber_gets_everything_once_and_in_order(
    world: World, steps: list[tuple[int, int]]
) -> None:
    sender = world.launch()
    readers = [_Reader(world.launch()) for _ in range(3)]
    for number, (what, which) in enumerate(steps):
        _step(world, sender, readers, readers[which], what, str(number))
    for one in (sender, *(reader.who for reader in readers)):
        world.end(one)
    assert not world.left()


def _step(
    world: World, sender: Any, readers: list[_Reader], one: _Reader, what: int, text: str
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
        world.cancel(one.who, one.futures.pop())  # the newest: order stays
    elif what == 5:
        subscribed = [reader for reader in readers if reader.handle is not None]
        if any(len(reader.expected) >= MESSAGING["box_messages"] for reader in subscribed):
            with failure("would-block", "'news'"):
                world.call(sender, "broadcast", "news", text)
        else:
            assert world.call(sender, "broadcast", "news", text) == len(subscribed)
            for reader in subscribed:
                reader.expected.append(text)


def a_full_box_is_named_and_nobody_gets_the_message(world: World) -> None:
    sender, slow, fast = (world.launch() for _ in range(3))
    slow_box, fast_box = (world.call(one, "subscribe", "t") for one in (slow, fast))
    for text in "abcd":
        world.call(sender, "broadcast", "t", text)
        assert receive(world, fast, fast_box) == text
    with failure("would-block", world.id(slow), "4 messages"):
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


def room_comes_when_the_slow_one_leaves_or_ends(world: World) -> None:
    sender, slow = world.launch(), world.launch()
    for leave in (lambda h: world.call(slow, "unsubscribe", h), lambda h: world.end(slow)):
        handle = world.call(slow, "subscribe", "t")
        for _ in range(MESSAGING["box_messages"]):
            world.call(sender, "broadcast", "t", "x")
        room = world.call(sender, "broadcast_room", "t")
        assert not is_ready(world, sender, room)
        leave(handle)
        assert world.ready(sender, [room]) == [room]
        world.cancel(sender, room)
    world.end(sender)


def bytes_are_bounded_per_instance_and_per_user(world: World) -> None:
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
    with failure("would-block", world.id(one)):
        world.call(other, "broadcast", "t", "")
    for topic in ("b", "c"):
        take(world, one, world.call(one, "pull", topic))
    world.end(one)
    world.end(other)
    assert not world.left()


def users_are_apart(world: World) -> None:
    ann, bob = world.launch(), world.launch("bob")
    world.call(bob, "subscribe", "t")
    assert world.call(ann, "broadcast", "t", "secret") == 0
    pull = world.call(bob, "pull", "q")
    world.call(ann, "push", "q", "secret")
    assert not is_ready(world, bob, pull)
    assert take(world, ann, world.call(ann, "pull", "q")) == "secret"
    world.end(ann)
    world.end(bob)


def wrong_arguments_open_nothing(world: World) -> None:
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


def many_open_pulls_end_at_once(world: World) -> None:
    one, other = world.launch(), world.launch()
    for _ in range(PULLS):
        world.call(one, "pull", "q")
    waiting = world.call(other, "pull", "q")
    world.call(other, "push", "q", "for one")
    world.end(one)
    assert take(world, other, waiting) == "for one"
    world.end(other)
    assert not world.left()


def what_was_given_stays_and_what_is_not_read_goes_with_its_subscription(world: World) -> None:
    reader, writer = world.launch(), world.launch()
    kept, gone = (world.call(reader, "subscribe", topic) for topic in ("kept", "gone"))
    given = world.call(reader, "next_message", gone)
    waiting = world.call(reader, "next_message", kept)
    for text in ("a", "b", "c"):
        world.call(writer, "broadcast", "gone", text)
    world.call(reader, "unsubscribe", gone)
    assert take(world, reader, given) == "a"
    assert not is_ready(world, reader, waiting)
    world.end(reader)
    world.end(writer)
    assert not world.left()


def subscriptions_of_one_topic_are_bounded(world: World) -> None:
    one, two = world.launch(), world.launch()
    for who in (one, one, one, two, two, two):
        world.call(who, "subscribe", "news")
    with failure("limit-exceeded", "'news'", "6 subscriptions", "several topics"):
        world.call(two, "subscribe", "news")
    bob = world.launch("bob")
    world.call(bob, "subscribe", "news")
    world.end(one)
    end = time.monotonic() + world.patience
    while True:
        try:
            world.call(two, "subscribe", "news")
            break
        except ApiError:
            assert time.monotonic() < end
    assert world.call(two, "broadcast", "news", "x") == 4
    world.end(two)
    world.end(bob)


def room_of_one_topic_comes_with_what_is_read_of_another(world: World) -> None:
    for how in ("take", "unsubscribe", "end"):
        sender, reader = world.launch(), world.launch()
        one, two = (world.call(reader, "subscribe", topic) for topic in ("one", "two"))
        for _ in range(2):
            world.call(sender, "broadcast", "one", "x" * 5000)
        with failure("would-block"):
            world.call(sender, "broadcast", "two", "x")
        rooms = [world.call(sender, "broadcast_room", topic) for topic in ("one", "two")]
        assert not world.ready(sender, rooms, most=0)
        if how == "take":
            world.call(reader, "unsubscribe", two)
            assert world.ready(sender, rooms, most=1) == rooms[1:]
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


RULES: tuple[Callable[[World], None], ...] = (
    a_full_box_is_named_and_nobody_gets_the_message,
    room_comes_when_the_slow_one_leaves_or_ends,
    bytes_are_bounded_per_instance_and_per_user,
    users_are_apart,
    wrong_arguments_open_nothing,
    many_open_pulls_end_at_once,
    what_was_given_stays_and_what_is_not_read_goes_with_its_subscription,
    subscriptions_of_one_topic_are_bounded,
    room_of_one_topic_comes_with_what_is_read_of_another,
)
