"""Binding of the contract: its functions to Python's, and guests' handles to queues and runs.

Names and types of the functions come from the contract.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

from pie_control.api.signatures import SIGNATURES
from pie_control.errors import ApiError, invalid
from pie_control.instances.futures import TAKERS
from pie_control.instances.instance import Instance
from pie_control.models.model import OpenQueue
from pie_control.scheduler.commands.run import RunCommand
from pie_control.wasm import U32_ARRAY, U32_LIST, HostFunction, Type


class BindingError(TypeError):
    """An interface of the contract and its implementation do not fit each other."""


def implement(
    interface: str,
    *sources: object,
    suspends: Collection[str] = (),
    arrays: Collection[str] = (),
) -> tuple[HostFunction, ...]:
    """The host functions of one interface of the contract.

    Everything is checked here, once: a guest's call goes straight to the Python function.

    Args:
        interface: name of the interface, such as `prefix-cache`.
        *sources: modules and objects that have its functions. `take_text` implements `take-text`.
            Its first argument is the calling instance; the others have the contract's names.
        suspends: names of functions that may return `SUSPENDED`, as in the contract.
        arrays: names of `list<u32>` parameters that the functions take as NumPy arrays, not as
            lists.

    Raises:
        BindingError: if a function is missing, its parameters are others, or a name is of none.
    """
    signatures = SIGNATURES[interface]
    calls = {name: _find(name, sources) for name in signatures}
    missing = sorted(name for name, call in calls.items() if call is None)
    if missing:
        raise BindingError(f"interface `{interface}`: missing {missing}")
    for name, call in calls.items():
        params, wanted = list(inspect.signature(call).parameters)[1:], list(signatures[name].params)
        if params != wanted:
            raise BindingError(f"`{name}` takes {params}; the contract says {wanted}")
    if others := set(suspends) - set(signatures):
        raise BindingError(f"interface `{interface}`: `suspends` names {others}, which it has not")
    lists = {p for one in signatures.values() for p, of in one.params.items() if of is U32_LIST}
    if others := set(arrays) - lists:
        raise BindingError(f"interface `{interface}`: no `list<u32>` for {others}")
    return tuple(
        HostFunction(
            interface,
            name,
            tuple(_param(param, of, arrays) for param, of in signature.params.items()),
            signature.result,
            signature.fallible,
            calls[name],
            name in suspends,
        )
        for name, signature in signatures.items()
    )


def _find(name: str, sources: Sequence[object]) -> Any:
    """The first source's function of a name of the contract; None if none has it. One that consumes
    futures of a kind, which has its name, needs no source.
    """
    own = name.replace("-", "_")
    for source in sources:
        if hasattr(source, own):
            return getattr(source, own)
    kind = TAKERS.get(name)

    def take(instance: Instance, future: int) -> Any:
        return instance.futures.take(future, kind)  # type: ignore[arg-type]  # it has one

    return take if kind else None


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
    """A queue, and the run behind a handle. Raises ApiError `invalid-handle`, `unsupported`."""
    target = queue_of(instance, queue, "sample")
    try:
        return target, target.runs[run]
    except KeyError:
        raise ApiError(
            "invalid-handle", f"{run} is no run of this queue (ended already?)"
        ) from None


def waiting_run_of(instance: Instance, queue: int, run: int) -> tuple[OpenQueue, RunCommand]:
    """As `run_of`, of a run whose tokens can be waited for.

    Raises:
        ApiError: `invalid-handle`, `unsupported`; `invalid-argument`: it drafts for another run.
    """
    target, found = run_of(instance, queue, run)
    if found.is_draft:
        raise invalid(f"run {run} drafts for another one: wait for that one's tokens")
    return target, found
