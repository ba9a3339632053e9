"""Calls of durable instances about topics and work queues."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pie_control.api.messaging.functions import Bus
from pie_control.durable.queues import Queues
from pie_control.durable.waits import Call, answer_of, durable_of, name_of, note_answer, quiet
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_control.instances.turns import Executor
from pie_control.journal.file import Writer
from pie_control.wasm import SUSPENDED, HostFunction


class MessageCalls:
    """What one says is said once: it has a number, and what keeps it knows of that."""

    def __init__(self, bus: Bus, queues: Queues, executor: Executor, writer: Writer) -> None:
        self._bus = bus
        self._queues = queues
        self._executor = executor
        self._writer = writer

    def taps(self) -> dict[str, Callable[[HostFunction], Call]]:
        """What makes each of them."""
        return {
            "messaging.subscribe": _subscribe,
            "messaging.push": partial(self._tells, self._push),
            "messaging.broadcast": partial(self._tells, self._broadcast),
        }

    def _push(self, instance: Instance, number: int, topic: str, message: str) -> None:
        self._queues.push(instance, (instance.id, number), topic, message)

    def _broadcast(self, instance: Instance, number: int, topic: str, message: str) -> int:
        return self._bus.broadcast_once(instance, topic, message, (instance.id, number))

    def _tells(self, tell: Callable[..., Any], function: HostFunction) -> Call:
        """A call that tells others something once all before is on disk; returns once theirs is."""
        name = name_of(function)

        def call(instance: Instance, *args: Any) -> Any:
            durable, guest = durable_of(instance), instance.guest
            number = durable.open()
            before = durable.next_call(name, number)
            if before is not None:
                return answer_of(before.ok, before.value, function.result)

            def begin() -> None:
                if instance.guest is guest:
                    try:
                        value = tell(instance, number, *args)
                    except ApiError as error:
                        value = error
                    self._writer.when_settled(partial(told, value))

            def told(value: Any) -> None:
                if instance.guest is guest:
                    note_answer(instance, name, number, value)
                    self._executor.answer(instance, value)

            durable.journal.when_safe(begin)
            return SUSPENDED

        return call


def _subscribe(function: HostFunction) -> Call:
    """Subscribes in each life; what was heard since the first is there."""
    asked = quiet(function)

    def call(instance: Instance, topic: str) -> Any:
        handle = asked(instance, topic)
        durable = durable_of(instance)
        durable.subscribes(durable.open(), topic)
        return handle

    return call
