"""Real instances and the parts that they reach, without Wasm and without a worker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pie_control.errors import ApiError
from pie_control.host import Host
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance, State
from pie_control.instances.registry import Lifecycle
from pie_control.instances.timers import Timers
from pie_control.instances.turns import Executor
from pie_control.messaging.bus import Bus
from pie_control.programs.store import Program
from pie_py.config.limits import Limits
from pie_py.config.server import ServerConfig
from pie_py.config.services import MessagingConfig


class Instances:
    """Launches and ends instances whose guests are the tests."""

    def __init__(self, **messaging: Any) -> None:
        lifecycle = Lifecycle(ServerConfig(), None, None, None)  # type: ignore[arg-type]
        self.host = Host(
            Executor(lifecycle.end, lambda result: None),
            Timers(),
            lifecycle,
            messaging=Bus(MessagingConfig(**messaging)),
        )
        lifecycle.host = self.host
        self._numbers = itertools.count(1)

    def launch(self, user: str = "ann", **limits: Any) -> Instance:
        number = next(self._numbers)
        program = Program("", "test", "python", 0, user, 0, "")
        instance = Instance(number, f"i{number}", program, [], user, Limits(**limits), self.host)
        self.host.lifecycle._live[instance.id] = instance
        self.host.messaging.join(instance)
        return instance

    def end(self, instance: Instance) -> None:
        self.host.lifecycle.end(instance, State.FINISHED, "")


@contextmanager
def failure(code: str, *words: str) -> Iterator[None]:
    """Expects an error of this code whose message has these words."""
    with pytest.raises(ApiError) as error:
        yield
    assert error.value.code == code
    for word in words:
        assert word in error.value.message


def is_ready(instance: Instance, handle: int) -> bool:
    return instance.futures.get(handle).ready


def take(instance: Instance, handle: int) -> Any:
    return instance.futures.take(handle, instance.futures.get(handle).kind)


def take_text(instance: Instance, handle: int) -> str:
    text: str = instance.futures.take(handle, FutureKind.TEXT)
    return text
