"""Generators in the place of Wasm guests."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from pie_control.errors import ApiError
from pie_control.wasm.guest import Status
from pie_control.wasm.linker import SUSPENDED

PuppetProgram = Generator[Any, Any, str]
SPIN = object()


class Puppet:
    """A generator in the place of a Wasm guest: it yields where a host call has suspended it, and
    `SPIN` where its slice ends.
    """

    cpu_ns = 0

    def __init__(self, program: PuppetProgram) -> None:
        self._program = program
        self._answer: Any = None
        self._waits = False
        self.outcome = (False, "")
        self.polls = 0

    def resume(self, value: Any) -> None:
        assert self._waits
        self._answer, self._waits = value, False

    def poll(self) -> Status:
        self.polls += 1
        if self._waits:
            return Status.WAITING
        answer, self._answer = self._answer, None
        try:
            self._waits = self._program.send(answer) is not SPIN
        except StopIteration as end:
            self.outcome = (True, end.value)
            return Status.DONE
        except ApiError as error:
            self.outcome = (False, str(error))
            return Status.DONE
        return Status.WAITING if self._waits else Status.RUNNING

    def close(self) -> None:
        pass


def call(function: Callable[..., Any], *args: Any) -> Generator[None, Any, Any]:
    """A host call that may suspend its guest."""
    answer = function(*args)
    if answer is SUSPENDED:
        answer = yield
        if isinstance(answer, ApiError):
            raise answer
    return answer
