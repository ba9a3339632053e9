"""Answers of durable instances' calls: now, or once what an earlier life had is ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from pie_control.errors import ApiError
from pie_control.instances.durable import Durable
from pie_control.instances.instance import Instance
from pie_control.wasm import SUSPENDED
from pie_control.wasm.linker import turn

Call: TypeAlias = Callable[..., Any]


def durable_of(instance: Instance) -> Durable:
    """What makes an instance durable that is."""
    durable = instance.durable
    assert durable is not None, "durable instances have functions of their own"
    return durable


def until(instance: Instance, futures: list[int], make: Callable[[], Any]) -> Any:
    """What `make` returns once all the futures are ready: now, or the guest is suspended."""
    for handle in futures:
        future = instance.futures.find(handle)
        if future is not None and not future.ready:
            instance.turn.wait_for([handle], lambda instance, _: _later(instance, futures, make))
            return SUSPENDED
    return make()


def _later(instance: Instance, futures: list[int], make: Callable[[], Any]) -> Any:
    try:
        return until(instance, futures, make)
    except ApiError as error:
        return error


def when_answered(note: Callable[[Any], None]) -> None:
    """Calls with the answer of the call that the running guest makes, which suspends it now; behind
    what is to be called already."""
    guest = turn.guest
    assert guest is not None, "guests call"
    before = guest.on_answer

    def both(value: Any) -> None:
        if before is not None:
            before(value)
        note(value)

    guest.on_answer = both


def error_of(text: str) -> ApiError:
    """An error of the journal."""
    code, _, message = text.partition(": ")
    return ApiError(code, message)  # type: ignore[arg-type]
