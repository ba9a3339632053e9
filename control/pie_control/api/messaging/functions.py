"""Trait `messaging`: topics and work queues between the instances of one user."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pie_control.api.messaging.channel import OWN_BYTES, Channel, Taken, check_topic
from pie_control.api.session import check_size
from pie_control.errors import ApiError, exceeded, unsupported
from pie_control.instances.futures import Future, FutureKind, wait_in
from pie_control.instances.instance import Handles
from pie_control.instances.mailbox import MessageBytes
from pie_py.wire.rpc import size_of

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance
    from pie_py.config.services import MessagingConfig

Origin: TypeAlias = tuple[str, int]  # a durable instance, and the number of its call
IDLE_BYTES = 64 << 20  # in the work queues of all users without an instance


@dataclass(slots=True, eq=False)
class _Subscription:
    """One reader of a topic, and what it has not read yet."""

    instance: Instance
    topic: str
    box: Channel
    key: int  # its number in the journal of a durable instance

    def put(self, message: str, origin: Origin | None) -> None:
        """Appends a message, unless the instance has it from a life of its sender before this."""
        durable = self.instance.durable
        if durable is None:
            self.box.put(message)
        elif durable.hears(self.key, message, origin):
            self.box.put(message, self.taken)

    def taken(self, instance: Instance) -> None:
        """A durable instance takes a message: its journal says from where."""
        if instance.durable is not None:
            instance.durable.source = self.key


class _Member:
    """The subscriptions of one instance."""

    def __init__(self, instance: Instance) -> None:
        self.subscriptions: Handles[_Subscription] = Handles()
        # Those of a life before, of which it has no handle yet, by key.
        self.standing: dict[int, _Subscription] = {}
        self.messages = instance.messages
        self.budget = MessageBytes(instance.limits.mailbox_bytes, self.messages)

    @property
    def all(self) -> list[_Subscription]:
        """Its subscriptions, with those of a life before."""
        return [*self.subscriptions.values(), *self.standing.values()]


class _User:
    """Everything of one user."""

    def __init__(self, queue_bytes: int) -> None:
        self.live = 0  # instances
        self.topics: dict[str, dict[_Subscription, None]] = {}
        self.queues: dict[str, Channel] = {}
        self.budget = MessageBytes(queue_bytes)  # of the work queues
        # Futures that wait for room, by the topic or queue that is full
        self.broadcasters: dict[str, dict[Future, None]] = {}
        self.pushers: dict[str, dict[Future, None]] = {}

    def wake_broadcasters(self) -> None:
        """There may be room for messages again."""
        _wake_where(self.broadcasters, list(self.broadcasters), partial(_all_have_room, self))


class Bus:
    """Messages between instances of one user, invisible to other users. They live in memory; those
    that durable instances have to do with are in journals, too.

    Not for several threads: every call comes from the control thread, and none of them waits.
    """

    def __init__(self, config: MessagingConfig, *, alone: bool = True) -> None:
        """Takes whether what is here is all that a user has, as it is without a cluster."""
        self._config = config
        self._alone = alone
        self._users: dict[str, _User] = {}
        self._members: dict[Instance, _Member] = {}
        # Users without an instance whose queues stay, by how long they have been without one
        self._idle: OrderedDict[str, _User] = OrderedDict()

    def bytes_of(self, user: str) -> int:
        """Bytes of a user's work queues."""
        found = self._users.get(user)
        if found is None:
            return 0
        return found.budget.held + sum(OWN_BYTES + len(topic) for topic in found.queues)

    # Instances come and go

    def join(self, instance: Instance) -> None:
        """An instance starts: the queues of its user stay."""
        self._user(instance).live += 1
        self._idle.pop(instance.user, None)

    def leave(self, instance: Instance) -> None:
        """An instance has ended, and its futures are closed: nothing of it is left afterwards.

        What it has pushed stays for the user's other instances. After the user's last instance,
        queues stay as far as `IDLE_BYTES` goes: those of the user that is idle longest go
        first.
        """
        lives_on = instance.durable is not None and instance.ended is None
        member = self._members.get(instance)
        if member is not None:
            if lives_on:
                member.standing.update({one.key: one for one in member.subscriptions.values()})
                member.subscriptions = Handles()
            else:
                self._close(instance, member)
        user = self._users.get(instance.user)
        if user is None:
            return
        user.live -= 1
        if user.live > 0 or lives_on:  # it joins at once
            return
        if user.queues:
            self._idle[instance.user] = user
            self._shrink_idle()
        else:
            self._forget(instance.user)

    def stand(self, instance: Instance, topics: Mapping[int, tuple[str, list[str], Any]]) -> None:
        """A durable instance comes from a server before this one: it has subscriptions, by their
        keys, with messages that it has not taken. It joins later.
        """
        for key, (topic, waiting, _) in topics.items():
            subscription = self._open_subscription(instance, topic, key)
            self._members[instance].standing[key] = subscription
            for message in waiting:
                subscription.box.put(message, subscription.taken)

    def _close(self, instance: Instance, member: _Member) -> None:
        del self._members[instance]
        for subscription in member.all:
            self._drop(subscription)
        _wake_broadcasters(self._user(instance), member)
        member.subscriptions.clear()  # their boxes hold the member
        member.standing.clear()

    # Topics

    def subscribe(self, instance: Instance, topic: str) -> int:
        """Opens a subscription to what is broadcast from now on, and returns its handle.

        Raises:
            ApiError: `invalid-argument`, `limit-exceeded`.
        """
        self._check(topic)
        key = 0 if instance.durable is None else instance.durable.coming_key
        member = self._members.get(instance)
        found = None if member is None else member.standing.pop(key, None)
        if found is not None and member is not None:
            return member.subscriptions.add(found)
        limit = self._config.subscriptions
        if member is not None and len(member.subscriptions) >= limit:
            raise exceeded(f"{limit} subscriptions are open; unsubscribe from some first")
        most = self._config.subscribers
        if len(self._user(instance).topics.get(topic, ())) >= most:
            raise exceeded(
                f"{topic!r} has {most} subscriptions, in all instances; use several topics"
            )
        subscription = self._open_subscription(instance, topic, key)
        return self._members[instance].subscriptions.add(subscription)

    def _open_subscription(self, instance: Instance, topic: str, key: int) -> _Subscription:
        member = self._members.get(instance)
        if member is None:
            member = self._members[instance] = _Member(instance)
        user = self._user(instance)
        box = Channel(
            self._config.box_messages,
            instance.limits.mailbox_bytes,
            member.budget,
            partial(_wake_broadcasters, user, member),
        )
        subscription = _Subscription(instance, topic, box, key)
        user.topics.setdefault(topic, {})[subscription] = None
        _charge(instance, OWN_BYTES + len(topic))
        return subscription

    def unsubscribe(self, instance: Instance, subscription: int) -> None:
        """Closes a subscription: unread messages are dropped, open futures fail with `cancelled`.

        Raises:
            ApiError: `invalid-handle`.
        """
        closed = self._subscription(instance, subscription)
        member = self._members[instance]
        del member.subscriptions[subscription]
        self._drop(closed)
        if instance.durable is not None:
            instance.durable.unsubscribes(closed.key)
        user = self._user(instance)
        _wake_where(user.broadcasters, (closed.topic,), partial(_all_have_room, user))
        _wake_broadcasters(user, member)

    def next_message(self, instance: Instance, subscription: int) -> int:
        """Opens a future of a subscription's next message. Raises ApiError `invalid-handle`."""

        def begin(future: Future) -> None:
            self._subscription(instance, subscription).box.take_by(instance, future)

        return _open(instance, FutureKind.TEXT, begin)

    def broadcast(self, instance: Instance, topic: str, message: str) -> int:
        """Sends to every subscriber of a topic, or to none. Returns how many there are.

        Raises:
            ApiError: `invalid-argument`; `limit-exceeded` if the message is too large;
                `would-block` if a subscriber's box is full, naming it.
        """
        return self.broadcast_once(instance, topic, message, None)

    def broadcast_once(
        self, instance: Instance, topic: str, message: str, origin: Origin | None
    ) -> int:
        """As `broadcast`; durable instances that have heard of the origin before hear nothing."""
        check_size(instance, size_of(message))
        self._check(topic)
        subscribers = self._user(instance).topics.get(topic, {})
        for subscriber in subscribers:
            if not subscriber.box.has_room:
                box = subscriber.box
                raise ApiError(
                    "would-block",
                    f"{subscriber.instance.id} has not read {box.count} messages ({box.bytes}"
                    f" bytes) of {topic!r}, so this one was sent to no one; `broadcast-room` tells"
                    " when to try again",
                )
        for subscriber in subscribers:
            subscriber.put(message, origin)
        return len(subscribers)

    def broadcast_room(self, instance: Instance, topic: str) -> int:
        """Opens a future of room in every subscriber's box. Raises ApiError `invalid-argument`."""

        def begin(future: Future) -> None:
            self._check(topic)
            user = self._user(instance)
            _wait_in(user.broadcasters, topic, future, partial(_all_have_room, user))
            _wake_with_room(user, instance.messages)

        return _open(instance, FutureKind.DONE, begin)

    # Work queues

    def push(self, instance: Instance, topic: str, message: str) -> None:
        """Appends to the user's work queue of a topic, which begins to exist if need be.

        Raises:
            ApiError: `invalid-argument`; `would-block` if it is full; `limit-exceeded` if there are
                too many queues, or the message is too large.
        """
        self.push_kept(instance, topic, message, None)

    def push_kept(self, instance: Instance, topic: str, message: str, taken: Taken | None) -> None:
        """As `push`, of a message that is kept elsewhere until it is taken."""
        check_size(instance, size_of(message))
        self._check(topic)
        user = self._user(instance)
        queue = user.queues.get(topic)
        if queue is None:
            if len(user.queues) >= self._config.queues:
                raise exceeded(f"{self._config.queues} queues hold messages; pull from some first")
            self._check_budget(user)
            queue = self._queue(user, topic)
        elif not queue.has_room:
            self._check_budget(user)
            raise ApiError(
                "would-block",
                f"{queue.count} messages ({queue.bytes} bytes) wait in {topic!r} already;"
                " `push-room` tells when to try again",
            )
        queue.put(message, taken)

    def push_again(self, user: str, topic: str, message: str, taken: Taken) -> None:
        """A message was kept by a server before this one."""
        found = self._users.get(user)
        if found is None:
            found = self._users[user] = self._idle[user] = _User(self._config.user_bytes)
        self._queue(found, topic).put(message, taken)

    def pull(self, instance: Instance, topic: str) -> int:
        """Opens a future of the oldest message of a work queue that no other has.

        Raises:
            ApiError: `invalid-argument`.
        """

        def begin(future: Future) -> None:
            self._check(topic)
            user = self._user(instance)
            self._queue(user, topic).take_by(instance, future)

        return _open(instance, FutureKind.TEXT, begin)

    def push_room(self, instance: Instance, topic: str) -> int:
        """Opens a future of room in a work queue. Raises ApiError `invalid-argument`."""

        def begin(future: Future) -> None:
            self._check(topic)
            user = self._user(instance)
            _wait_in(user.pushers, topic, future, partial(_has_room, user))

        return _open(instance, FutureKind.DONE, begin)

    # Inside

    def _check(self, topic: str) -> None:
        """Refuses what is no topic; and all of them where some subscribers would hear nothing.

        Raises:
            ApiError: `invalid-argument`, `unsupported`.
        """
        check_topic(topic)
        if not self._alone:
            raise unsupported(
                "topics and work queues do not reach the other nodes of a cluster: send messages to"
                " instances, use the store, or run this program on one server"
            )

    def _user(self, instance: Instance) -> _User:
        user = self._users.get(instance.user)
        if user is None:
            user = self._users[instance.user] = _User(self._config.user_bytes)
        return user

    def _subscription(self, instance: Instance, handle: int) -> _Subscription:
        member = self._members.get(instance)
        found = None if member is None else member.subscriptions.get(handle)
        if found is None:
            raise ApiError("invalid-handle", f"{handle} is no subscription of this instance")
        return found

    def _drop(self, subscription: _Subscription) -> None:
        _charge(subscription.instance, -OWN_BYTES - len(subscription.topic))
        user = self._user(subscription.instance)
        subscribers = user.topics[subscription.topic]
        del subscribers[subscription]
        if not subscribers:
            del user.topics[subscription.topic]
        subscription.box.close(
            ApiError("cancelled", f"the subscription to {subscription.topic!r} has ended")
        )

    def _check_budget(self, user: _User) -> None:
        if not user.budget.has_room:
            raise ApiError(
                "would-block",
                f"{user.budget.held} bytes wait in your queues, in {len(user.queues)} topics;"
                " `push-room` tells when to try again",
            )

    def _queue(self, user: _User, topic: str) -> Channel:
        config = self._config
        if topic not in user.queues:
            user.queues[topic] = Channel(
                config.queue_messages,
                config.queue_bytes,
                user.budget,
                lambda: self._queue_changed(user, topic),
            )
        return user.queues[topic]

    def _queue_changed(self, user: _User, topic: str) -> None:
        queue = user.queues.get(topic)
        if queue is not None and queue.is_idle:
            del user.queues[topic]
        if user.pushers and user.budget.has_room:
            _wake_where(user.pushers, list(user.pushers), partial(_has_room, user))

    def _shrink_idle(self) -> None:
        held = sum(user.budget.held for user in self._idle.values())
        while held > IDLE_BYTES:
            name, user = self._idle.popitem(last=False)
            held -= user.budget.held
            self._forget(name)

    def _forget(self, user: str) -> None:
        self._users.pop(user).queues.clear()  # which hold the user


def _charge(instance: Instance, size: int) -> None:
    """A subscription counts with its user's messages, or no more."""
    if instance.messages is not None:
        instance.messages.add(size)


def _open(instance: Instance, kind: FutureKind, begin: Callable[[Future], None]) -> int:
    return instance.futures.open(kind, begin, f"messages of {instance.program.name}")


def _all_have_room(user: _User, topic: str) -> bool:
    return all(subscriber.box.has_room for subscriber in user.topics.get(topic, ()))


def _has_room(user: _User, topic: str) -> bool:
    queue = user.queues.get(topic)
    return user.budget.has_room if queue is None else queue.has_room


def _wait_in(
    waiters: dict[str, dict[Future, None]],
    topic: str,
    future: Future,
    has_room: Callable[[str], bool],
) -> None:
    if has_room(topic):
        future.resolve()
    else:
        wait_in(waiters, topic, future)


def _wake_broadcasters(user: _User, member: _Member) -> None:
    """Wakes the broadcasters that wait for the boxes of an instance, where there is room."""
    if not user.broadcasters:
        return
    if not member.budget.has_room:  # the user's other messages may leave none
        _wake_with_room(user, member.messages)
    else:
        topics = {subscription.topic for subscription in member.all}
        _wake_where(user.broadcasters, topics, partial(_all_have_room, user))


def _wake_with_room(user: _User, messages: MessageBytes | None) -> None:
    """Wakes broadcasters once a user's messages leave room, if they leave none now."""
    if messages is not None and not messages.has_room:
        messages.when_room(user.wake_broadcasters)


def _wake_where(
    waiters: dict[str, dict[Future, None]], topics: Iterable[str], has_room: Callable[[str], bool]
) -> None:
    for topic in topics:
        if topic in waiters and has_room(topic):
            for future in waiters.pop(topic):
                future.resolve()
