"""Answers of durable instances' calls: now, or once what an earlier life had is ready."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from pie_control.errors import ApiError
from pie_control.instances.durable import Durable
from pie_control.instances.instance import Instance
from pie_control.wasm.linker import SUSPENDED, HostFunction, turn
from pie_control.wasm.types import List, Tuple, Type

Call: TypeAlias = Callable[..., Any]


def durable_of(instance: Instance) -> Durable:
    """The durable side of an instance that has one."""
    durable = instance.durable
    assert durable is not None, "durable instances have functions of their own"
    return durable


def until(instance: Instance, futures: list[int], make: Callable[[], Any]) -> Any:
    """Calls `make` once all the futures are ready: now, or the guest is suspended."""
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


def noted(note: Callable[[Any], None], make: Callable[..., Any], *args: Any) -> Any:
    """Calls `note` with the outcome of `make`: now, or once it is answered."""
    try:
        value = make(*args)
    except ApiError as error:
        note(error)
        raise
    if value is SUSPENDED:
        assert turn.guest is not None, "guests call"
        turn.guest.on_answer = note
    else:
        note(value)
    return value


def note_answer(instance: Instance, name: str, key: int | None, value: Any) -> None:
    """Writes down the answer or the error of a call."""
    failed = isinstance(value, ApiError)
    durable_of(instance).called(name, key, str(value) if failed else value, ok=not failed)


def quiet(function: HostFunction) -> Call:
    """A call that is made in each life, whose failure alone is written down."""
    real, name = function.call, function.full_name

    def note(instance: Instance, value: Any) -> None:
        if isinstance(value, ApiError):
            durable = durable_of(instance)
            if durable.goes_over:
                raise durable.departs(name, why=f"it fails now: {value}")
            durable.failed(name, str(value))

    def call(instance: Instance, *args: Any) -> Any:
        before = durable_of(instance).next_failure(name)
        if before is not None:
            raise error_of(before)
        return noted(partial(note, instance), real, instance, *args)

    return call


def error_of(text: str) -> ApiError:
    """An error of the journal."""
    code, _, message = text.partition(": ")
    return ApiError(code, message)  # type: ignore[arg-type]


def answer_of(ok: bool, value: Any, result: Type | None) -> Any:
    """An answer of the journal, as the contract's type wants it, or its error, which is raised."""
    if not ok:
        raise error_of(value)
    return _typed(value, result)


def _typed(value: Any, of: Type | None) -> Any:
    match of:
        case List(element) if isinstance(value, list):
            return [_typed(one, element) for one in value]
        case Tuple(elements):
            pairs = zip(value, elements, strict=True)
            return tuple(_typed(one, element) for one, element in pairs)
    return value
