"""Binding of the contract: its functions to Python's, and guests' handles to queues and runs.

Names and types of the functions come from the contract.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from pie_control.errors import ApiError, invalid
from pie_control.instances.futures import TAKERS
from pie_control.instances.instance import Instance
from pie_control.models.model import OpenQueue
from pie_control.scheduler.commands.run import RunCommand
from pie_control.wasm import types
from pie_control.wasm.linker import HostFunction
from pie_control.wasm.types import U32_ARRAY, U32_LIST, Enum, List, Tuple, Type
from pie_py.build import wit


class Signature(NamedTuple):
    """Types of a function; `fallible` if it returns `result<T, string>`, `result` is `T` then."""

    params: dict[str, Type]
    result: Type | None
    fallible: bool


# Types that are compared by identity, or have a form of their own in Python.
_NAMED = {
    one.wit: one
    for one in (
        *(types.BOOL, types.S32, types.U32, types.U64, types.F32),
        *(types.STRING, types.U8_LIST, types.U32_LIST, types.STRING_LIST),
    )
}


class UnknownTypeError(TypeError):
    """The contract has a type that the host cannot pass; `pie_control/wasm/types.py` must learn
    it.
    """


def _signature(function: wit.Function, enums: dict[str, Enum]) -> Signature:
    result = function.result
    fallible = result is not None and result.name == "result"
    value = result.arguments[0] if result is not None and fallible else result
    params = {name.replace("-", "_"): _type(of, enums) for name, of in function.params}
    return Signature(params, None if value is None else _type(value, enums), fallible)


def _type(of: wit.Type, enums: dict[str, Enum]) -> Type:
    if str(of) in _NAMED:
        return _NAMED[str(of)]
    if of.name in enums:
        return enums[of.name]
    inner = [_type(each, enums) for each in of.arguments if each is not None]
    if of.name == "list":
        return List(*inner)
    if of.name == "tuple":
        return Tuple(*inner)
    raise UnknownTypeError(str(of))


def read_signatures(contract: wit.Package) -> dict[str, dict[str, Signature]]:
    """Those of a contract.

    Raises:
        UnknownTypeError: see there.
    """
    found = {}
    for name, interface in contract.interfaces.items():
        enums = {enum: Enum(cases) for enum, cases in interface.enums.items()}
        found[name] = {
            function: _signature(types, enums) for function, types in interface.functions.items()
        }
    return found


SIGNATURES = read_signatures(wit.contract())


class BindingError(TypeError):
    """An interface of the contract and its implementation do not fit each other."""


def implement(
    interface: str, *sources: object, suspends: Collection[str] = (), arrays: Collection[str] = ()
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


def check_ids(tokens: Collection[int], size: int, what: str = "token") -> None:
    """Refuses token ids that a vocabulary of this size has not. Raises `invalid-argument`."""
    if tokens and (highest := max(tokens)) >= size:
        raise invalid(f"{what} {highest} is outside the vocabulary (0 to {size - 1})")


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
