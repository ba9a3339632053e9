"""The imports and exports of a component, and whether it fits this server."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping
from mmap import mmap
from typing import Any, TypeAlias

import wasmtime
from wasmtime import component as wasm

from pie_control.errors import ProgramRejected

CONTRACT = "pie:inferlet"
CONTRACT_VERSION = "0.1.0"
RUN = "func(list<string>) -> result<string, string>"
REBUILD = "rebuild it with `pie-py build`"

# What the server offers: signatures by function name, by interface name
Offer: TypeAlias = Mapping[str, Mapping[str, str]]

_NAME = re.compile(r"(?P<package>[^/@]+)/(?P<interface>[^@]+)(@(?P<version>.+))?")


def interface_name(interface: str) -> str:
    """Full name of one of the contract's interfaces, as components import it."""
    return f"{CONTRACT}/{interface}@{CONTRACT_VERSION}"


def check_format(data: bytes | mmap) -> None:
    """Refuses what is no component, by its first bytes.

    Raises:
        ProgramRejected: saying what it is instead.
    """
    head = bytes(data[:8])
    if head[:4] != b"\0asm":
        raise ProgramRejected(f"this is not a WebAssembly file: {_describe(bytes(data[:64]))}")
    if head[4:] == b"\1\0\0\0":
        raise ProgramRejected(
            "this is a core WebAssembly module, not a component; build it with `pie-py build`,"
            " which makes a component of it"
        )
    if head[4:] != b"\x0d\0\1\0":
        raise ProgramRejected(
            f"this WebAssembly file has an unknown version ({head[4:].hex(' ') or 'cut off'});"
            f" {REBUILD}"
        )


def check_component(component: wasm.Component, engine: wasmtime.Engine, offer: Offer) -> None:
    """Refuses a component that imports what the server does not offer, or that cannot be run.

    Host functions read arguments by the types they were declared with, so a component whose types
    differ must never run.

    Raises:
        ProgramRejected: naming everything that is wrong.
    """
    kind = component.type
    foreign: list[str] = []
    wrong: list[str] = []
    for name, extern in kind.imports(engine).items():
        match = _NAME.fullmatch(name)
        if match is None or match["package"] != CONTRACT:
            foreign.append(name)
        elif match["version"] != CONTRACT_VERSION:
            raise ProgramRejected(
                f"it was built for version {match['version'] or 'none'} of the contract {CONTRACT};"
                f" this server speaks {CONTRACT_VERSION}: {REBUILD} of the same pie-py version"
            )
        elif match["interface"] not in offer:
            wrong.append(f"the interface {name}, which this server does not have")
        else:
            wrong += _differences(name, extern.ty, engine, offer[match["interface"]])
    if foreign:
        raise ProgramRejected(_explain_foreign(foreign))
    if wrong:
        raise ProgramRejected(f"it imports {'; '.join(wrong)}; {REBUILD}")
    run = kind.exports(engine).get("run")
    if run is None:
        raise ProgramRejected(
            f"it exports no function `run: {RUN}`, with which an inferlet starts; {REBUILD}"
        )
    signature = _signature(run.ty)
    if signature != RUN:
        raise ProgramRejected(f"its export `run` is {signature}; it must be {RUN}; {REBUILD}")


def explain_compile_error(message: str, memory_bytes: int) -> str:
    """Why Wasmtime does not compile a component, for the user who sent it."""
    reason = " ".join(message.split())
    if "minimum byte size" in reason or "exceeds the limit" in reason:
        return (
            f"it needs more than an instance may have here ({memory_bytes >> 20} MiB of"
            f" memory): {reason}"
        )
    return f"this WebAssembly component is damaged or uses what this server does not have: {reason}"


def _describe(head: bytes) -> str:
    if not head:
        return "it is empty"
    if head.lstrip()[:1] == b"(":
        return "it looks like WebAssembly text; send the binary form (`wasm-tools parse`)"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # it may end within a character
    except UnicodeDecodeError:
        return f"it starts with the bytes {head[:8].hex(' ')}"
    return (
        f"it is text that starts with {text.splitlines()[0][:40]!r};"
        " a Python program needs a name that ends in .py"
    )


def _explain_foreign(names: Iterable[str]) -> str:
    listed = ", ".join(sorted(names))
    hint = (
        "; files, sockets, clocks and standard streams of WASI are not offered: use the SDK's"
        " functions for time, randomness and output"
        if "wasi:" in listed
        else ""
    )
    return f"it imports {listed}; an inferlet may import {CONTRACT}/* only{hint}; {REBUILD}"


def _differences(
    interface: str, instance: Any, engine: Any, offered: Mapping[str, str]
) -> Iterable[str]:
    """The functions that an imported instance must have, and that are not offered."""
    if not isinstance(instance, wasm.ComponentInstanceType):
        return
    for name, extern in instance.exports(engine).items():
        if not isinstance(extern.ty, wasm.FuncType):
            continue
        signature = _signature(extern.ty)
        if name not in offered:
            yield f"{interface}.{name}, which this server does not have"
        elif offered[name] != signature:
            yield f"{interface}.{name} as {signature}, which here is {offered[name]}"


def _signature(function: Any) -> str:
    if not isinstance(function, wasm.FuncType):
        return "no function"
    result = function.result
    returns = "" if result is None else f" -> {_wit(result)}"
    return f"func({', '.join(_wit(kind) for _, kind in function.params)}){returns}"


def _wit(kind: Any) -> str:
    """A type as `pie_control.wasm.types` writes it; of others the class, which matches nothing."""
    match kind:
        case wasm.ListType():
            return f"list<{_wit(kind.element)}>"
        case wasm.TupleType():
            return f"tuple<{', '.join(_wit(element) for element in kind.elements)}>"
        case wasm.EnumType():
            return f"enum {{ {', '.join(kind.names)} }}"
        case wasm.ResultType():
            ok = "_" if kind.ok is None else _wit(kind.ok)
            return f"result<{ok}{'' if kind.err is None else ', ' + _wit(kind.err)}>"
    return type(kind).__name__.removesuffix("Type").lower()
