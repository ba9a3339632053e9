"""Binding of the contract: its functions to Python's, and guests' handles to queues and runs.

Names and types of the functions come from the generated table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from pie_control.api.signatures import SIGNATURES
from pie_control.commands.run import RunCommand
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_control.models.model import OpenQueue
from pie_control.wasm import U32_ARRAY, U32_LIST, HostFunction, Type


class BindingError(TypeError):
    """An interface of the contract and its implementation do not fit each other."""


def implement(
    interface: str,
    *calls: Callable[..., Any],
    suspends: Collection[Callable[..., Any]] = (),
    arrays: Collection[str] = (),
) -> tuple[HostFunction, ...]:
    """The host functions of one interface of the contract.

    Everything is checked here, once: a guest's call goes straight to the Python function.

    Args:
        interface: name of the interface, such as `prefix-cache`.
        *calls: all functions of the interface. `take_text` implements `take-text`. Its first
        argument is
            the calling instance; the others have the names that the contract gives them.
        suspends: those of the functions that may return `SUSPENDED`.
        arrays: names of `list<u32>` parameters that the functions take as NumPy arrays, not as
            lists.

    Raises:
        BindingError: if a function is missing or not in the contract, or its parameters are others.
    """
    given = {call.__name__.replace("_", "-"): call for call in calls}
    _check(interface, given, arrays)
    if not set(suspends) <= set(calls):
        raise BindingError(f"interface `{interface}`: `suspends` names a function of another one")
    return tuple(
        HostFunction(
            interface,
            name,
            tuple(_param(param, of, arrays) for param, of in signature.params.items()),
            signature.result,
            signature.fallible,
            given[name],
            given[name] in suspends,
        )
        for name, signature in SIGNATURES[interface].items()
    )


def _check(interface: str, given: dict[str, Callable[..., Any]], arrays: Collection[str]) -> None:
    signatures = SIGNATURES[interface]
    if given.keys() != signatures.keys():
        missing, unknown = signatures.keys() - given.keys(), given.keys() - signatures.keys()
        raise BindingError(
            f"interface `{interface}`: missing {sorted(missing)}, not in the contract"
            f" {sorted(unknown)}"
        )
    lists: set[str] = set()
    for name, call in given.items():
        params = signatures[name].params
        names = list(inspect.signature(call).parameters)[1:]
        if names != list(params):
            raise BindingError(f"`{name}` takes {names}; the contract says {list(params)}")
        lists.update(param for param, of in params.items() if of is U32_LIST)
    if not set(arrays) <= lists:
        raise BindingError(f"interface `{interface}`: no `list<u32>` for {set(arrays) - lists}")


def _param(name: str, of: Type, arrays: Collection[str]) -> Type:
    return U32_ARRAY if name in arrays and of is U32_LIST else of


def queue_of(instance: Instance, handle: int, trait: str | None = None) -> OpenQueue:
    """The queue behind a handle, of a model that has a trait.

    Raises:
        ApiError: `invalid-handle`, `unsupported`.
    """
    try:
        queue: OpenQueue = instance.queues[handle]
    except KeyError:
        raise ApiError("invalid-handle", f"{handle} is no queue of this instance") from None
    if trait is not None and trait not in queue.model.traits:
        queue.model.check_trait(trait)
    return queue


def run_of(instance: Instance, queue: int, run: int) -> tuple[OpenQueue, RunCommand]:
    """A queue, and the run behind a handle.

    Raises:
        ApiError: `invalid-handle`, `unsupported`.
    """
    target = queue_of(instance, queue, "sample")
    try:
        return target, target.runs[run]
    except KeyError:
        raise ApiError(
            "invalid-handle", f"{run} is no run of this queue (ended already?)"
        ) from None
