"""Topics and work queues between real instances: nothing lost, nothing twice, nothing left
behind.
"""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.instances import Instances, failure, is_ready, take, take_text
from support.rig import messaging

from pie_control.instances.instance import Instance, State
from pie_control.messaging.channel import OVERHEAD


class WorkQueue(RuleBasedStateMachine):
    """Pushes, pulls, takes, cancels and ends in any order, against a list of what there should
    be.
    """

    def __init__(self) -> None:
        super().__init__()
        self.instances = Instances(queue_messages=6)
        self.alive = [self.instances.launch() for _ in range(3)]
        self.watcher = self.instances.launch()  # keeps the user, whoever ends
        self.pulls: list[tuple[Instance, int]] = []
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
        if self.there >= 6:
            with failure("would-block", "'jobs'", "push-room"):
                messaging.push(self.one(who), "jobs", text)
        else:
            messaging.push(self.one(who), "jobs", text)
            self.pushed.append(text)

    @rule(who=st.integers(0, 9))
    def pull(self, who: int) -> None:
        instance = self.one(who)
        self.pulls.append((instance, messaging.pull(instance, "jobs")))

    @precondition(lambda self: self.pulls)
    @rule(which=st.integers(0, 99), cancel=st.booleans())
    def take_or_cancel(self, which: int, cancel: bool) -> None:
        instance, handle = self.pulls.pop(which % len(self.pulls))
        if cancel:
            instance.futures.cancel(handle)
        elif is_ready(instance, handle):
            self.taken.append(take_text(instance, handle))
        else:
            self.pulls.append((instance, handle))

    @rule(who=st.integers(0, 9))
    def end_and_launch(self, who: int) -> None:
        gone = self.one(who)
        self.instances.end(gone)
        self.alive[self.alive.index(gone)] = self.instances.launch()
        self.pulls = [(i, h) for i, h in self.pulls if i is not gone]

    @invariant()
    def as_many_pulls_are_ready_as_can_be(self) -> None:
        ready = sum(is_ready(i, h) for i, h in self.pulls)
        assert ready == min(len(self.pulls), self.there)

    @invariant()
    def earlier_pulls_are_served_first_unless_somebody_gave_up(self) -> None:
        # A pull is never ready while an earlier one of the same instance waits.
        for instance in self.alive:
            states = [
                is_ready(i, h)
                for i, h in sorted((p for p in self.pulls if p[0] is instance), key=lambda p: p[1])
            ]
            assert states == sorted(states, reverse=True)

    def teardown(self) -> None:
        for instance, handle in self.pulls:
            instance.futures.cancel(handle)
        rest: list[str] = []
        while self.there > len(rest):
            rest.append(take_text(self.watcher, messaging.pull(self.watcher, "jobs")))
        assert rest == sorted(rest, key=int)  # what was given back is in its old place
        assert Counter(self.taken + rest) == Counter(self.pushed)
        for instance in (*self.alive, self.watcher):
            self.instances.end(instance)
        assert not self.instances.parts.messaging._users


TestWorkQueue = WorkQueue.TestCase


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=60))
def test_every_subscriber_gets_everything_once_and_in_order(steps: list[tuple[int, int]]) -> None:
    instances = Instances(box_messages=4)
    sender = instances.launch()
    readers = [instances.launch() for _ in range(3)]
    handles: list[int | None] = [None] * 3
    expected: list[list[str]] = [[], [], []]
    futures: list[list[int]] = [[], [], []]
    for number, (what, which) in enumerate(steps):
        handle = handles[which]
        if what == 0 and handle is None:
            handles[which] = messaging.subscribe(readers[which], "news")
        elif what == 1 and handle is not None:
            messaging.unsubscribe(readers[which], handle)
            for future in futures[which]:
                if is_ready(readers[which], future):
                    error = readers[which].futures.get(future).error
                    if error is None:
                        assert take(readers[which], future) in expected[which]
                    else:
                        assert error.code == "cancelled"
            handles[which], expected[which], futures[which] = None, [], []
        elif what == 2 and handle is not None:
            futures[which].append(messaging.next_message(readers[which], handle))
        elif what == 3 and futures[which] and is_ready(readers[which], futures[which][0]):
            text = take_text(readers[which], futures[which].pop(0))
            assert text == expected[which].pop(0)
        elif what == 4 and futures[which]:
            readers[which].futures.cancel(futures[which].pop())  # the newest: order stays
        elif what == 5:
            open_ = [i for i in range(3) if handles[i] is not None]
            if any(len(expected[i]) >= 4 for i in open_):
                with failure("would-block", "'news'"):
                    messaging.broadcast(sender, "news", str(number))
            else:
                assert messaging.broadcast(sender, "news", str(number)) == len(open_)
                for i in open_:
                    expected[i].append(str(number))
    for instance in (sender, *readers):
        instances.end(instance)
    assert not instances.parts.messaging._users
    assert not instances.parts.messaging._members


def test_a_full_box_is_named_and_nobody_gets_the_message() -> None:
    instances = Instances(box_messages=2)
    sender, slow, fast = (instances.launch() for _ in range(3))
    slow_box, fast_box = messaging.subscribe(slow, "t"), messaging.subscribe(fast, "t")
    for text in ("a", "b"):
        messaging.broadcast(sender, "t", text)
        take_text(fast, messaging.next_message(fast, fast_box))
    with failure("would-block", slow.id, "2 messages"):
        messaging.broadcast(sender, "t", "c")
    room = messaging.broadcast_room(sender, "t")
    assert not is_ready(sender, room)
    unread = messaging.next_message(fast, fast_box)
    assert not is_ready(fast, unread)
    message = messaging.next_message(slow, slow_box)
    assert not is_ready(sender, room)  # held by a future, it still takes room
    assert take_text(slow, message) == "a"
    assert is_ready(sender, room)
    assert messaging.broadcast(sender, "t", "c") == 2
    assert take_text(fast, unread) == "c"


def test_room_comes_when_the_slow_one_leaves_or_ends() -> None:
    instances = Instances(box_messages=1)
    sender, slow = instances.launch(), instances.launch()
    for leave in (lambda h: messaging.unsubscribe(slow, h), lambda h: instances.end(slow)):
        handle = messaging.subscribe(slow, "t")
        messaging.broadcast(sender, "t", "x")
        room = messaging.broadcast_room(sender, "t")
        assert not is_ready(sender, room)
        leave(handle)
        assert is_ready(sender, room)
        sender.futures.cancel(room)


def test_bytes_are_bounded_per_instance_and_per_user() -> None:
    instances = Instances(queue_bytes=10_000, user_bytes=15_000)
    one = instances.launch(mailbox_bytes=10_000)
    messaging.push(one, "a", "x" * 10_000)
    with failure("would-block", "'a'"):
        messaging.push(one, "a", "")
    messaging.push(one, "b", "x" * 10_000)
    with failure("would-block", "in 2 topics"):
        messaging.push(one, "c", "")
    room = messaging.push_room(one, "c")
    assert not is_ready(one, room)
    take_text(one, messaging.pull(one, "a"))
    assert is_ready(one, room)
    messaging.push(one, "c", "")
    for topic in ("s", "t"):
        messaging.subscribe(one, topic)
    messaging.broadcast(one, "s", "x" * 10_000)
    with failure("would-block", one.id):
        messaging.broadcast(one, "t", "")


def test_users_are_apart() -> None:
    instances = Instances()
    ann, bob = instances.launch("ann"), instances.launch("bob")
    messaging.subscribe(bob, "t")
    assert messaging.broadcast(ann, "t", "secret") == 0
    pull = messaging.pull(bob, "q")
    messaging.push(ann, "q", "secret")
    assert not is_ready(bob, pull)


def test_queues_outlive_their_user_s_instances_within_bounds() -> None:
    instances = Instances(idle_bytes=2 * (100 + OVERHEAD))
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


def test_wrong_arguments_open_nothing() -> None:
    instances = Instances(subscriptions=2, queues=2)
    one = instances.launch()
    for topic in ("", "x" * 257, "é" * 129):
        for call in (
            messaging.subscribe,
            messaging.pull,
            messaging.push_room,
            messaging.broadcast_room,
        ):
            with failure("invalid-argument", "topic"):
                call(one, topic)
        for send in (messaging.push, messaging.broadcast):
            with failure("invalid-argument", "topic"):
                send(one, topic, "")
    for handle in (0, 1, 2**32 - 1):
        with failure("invalid-handle"):
            messaging.next_message(one, handle)
        with failure("invalid-handle"):
            messaging.unsubscribe(one, handle)
    with failure("limit-exceeded", "2097153"):
        messaging.push(one, "t", "x" * (2**21 + 1))
    handle = messaging.subscribe(one, "a")
    messaging.subscribe(one, "b")
    with failure("limit-exceeded", "2 subscriptions"):
        messaging.subscribe(one, "c")
    messaging.unsubscribe(one, handle)
    assert messaging.subscribe(one, "c") > handle + 1
    for topic in ("a", "b"):
        messaging.push(one, topic, "")
    with failure("limit-exceeded", "2 queues"):
        messaging.push(one, "c", "")
    assert len(one.futures) == 0


def test_thousands_of_open_pulls_end_at_once() -> None:
    instances = Instances()
    one, other = instances.launch(), instances.launch()
    for _ in range(4096):
        messaging.pull(one, "q")
    waiting = messaging.pull(other, "q")
    messaging.push(other, "q", "for one")
    instances.end(one)
    assert one.state is State.FINISHED
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
    assert budget.used == 3 * (1 + OVERHEAD)
    messaging.unsubscribe(reader, gone)
    assert budget.used == 1 + OVERHEAD
    assert take_text(reader, given) == "a"
    assert budget.used == 0
    assert not is_ready(reader, waiting)


def test_subscriptions_of_one_topic_are_bounded() -> None:
    instances = Instances(subscribers=3)
    one, two = instances.launch(), instances.launch()
    for instance in (one, one, two):
        messaging.subscribe(instance, "news")
    with failure("limit-exceeded", "'news'", "3 subscriptions", "several topics"):
        messaging.subscribe(two, "news")
    messaging.subscribe(instances.launch("bob"), "news")
    instances.end(one)
    assert messaging.broadcast(two, "news", "x") == 1
    messaging.subscribe(two, "news")


def test_room_of_one_topic_comes_with_what_is_read_of_another() -> None:
    for how in ("take", "unsubscribe", "end"):
        instances = Instances()
        sender, reader = instances.launch(), instances.launch(mailbox_bytes=500)
        one, two = (messaging.subscribe(reader, topic) for topic in ("one", "two"))
        for _ in range(2):
            messaging.broadcast(sender, "one", "x" * 100)
        with failure("would-block"):
            messaging.broadcast(sender, "two", "x")
        rooms = [messaging.broadcast_room(sender, topic) for topic in ("one", "two")]
        assert not any(is_ready(sender, room) for room in rooms)
        if how == "take":
            messaging.unsubscribe(reader, two)
            assert is_ready(sender, rooms[1])
            assert not is_ready(sender, rooms[0])
            take_text(reader, messaging.next_message(reader, one))
        elif how == "unsubscribe":
            messaging.unsubscribe(reader, one)
        else:
            instances.end(reader)
        assert all(is_ready(sender, room) for room in rooms), how
        if how == "unsubscribe":
            assert messaging.broadcast(sender, "two", "x") == 1
