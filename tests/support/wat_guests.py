"""Guests written as WebAssembly text: a component around a core function `run` given as text."""

from __future__ import annotations

from collections.abc import Sequence

from wasmtime import wat2wasm

from pie_control.wasm.engine import GuestLimits
from pie_control.wasm.guest import Guest, Status
from pie_control.wasm.linker import SUSPENDED, HostFunction
from pie_control.wasm.types import (
    BOOL,
    F32,
    F64,
    S32,
    STRING,
    U8,
    U32,
    U64,
    Array,
    Bytes,
    Enum,
    List,
    Scalar,
    String,
    Tuple,
    Type,
)

CORE: dict[Type, str] = {F32: "f32", F64: "f64", U64: "i64"}
SIZE = {BOOL: 1, U8: 1, S32: 4, U32: 4, F32: 4, U64: 8, F64: 8}

# What `run` may return: the address of `ok("")`, and of what a host call wrote to 1024
OK = "(i32.const 512)"


def flat(of: Type) -> list[str]:
    """Core types that a value is passed as."""
    match of:
        case Scalar():
            return [CORE.get(of, "i32")]
        case Enum():
            return ["i32"]
        case Tuple(elements):
            return [core for element in elements for core in flat(element)]
    return ["i32", "i32"]


def layout(of: Type) -> tuple[int, int]:
    """Size and alignment in memory."""
    match of:
        case Scalar():
            return SIZE[of], SIZE[of]
        case Enum():
            return 1, 1
        case Tuple(elements):
            end, most = 0, 1
            for element in elements:
                size, align = layout(element)
                end = -(-end // align) * align + size
                most = max(most, align)
            return -(-end // most) * most, most
    return 8, 4


def loads(of: Type, at: int) -> str:
    """Pushes the flat form of the value at an address."""
    match of:
        case Tuple(elements):
            parts = []
            for element in elements:
                size, align = layout(element)
                at = -(-at // align) * align
                parts.append(loads(element, at))
                at += size
            return " ".join(parts)
        case Scalar() | Enum():
            size, _ = layout(of)
            core = flat(of)[0]
            load = f"{core}.load" + ("8_u" if size == 1 else "")
            return f"({load} (i32.const {at}))"
    return f"(i32.load (i32.const {at})) (i32.load (i32.const {at + 4}))"


def wat_type(of: Type) -> str:
    """How component text writes a type."""
    match of:
        case Bytes():
            return "(list u8)"
        case List(element) | Array(element):
            return f"(list {wat_type(element)})"
        case Tuple(elements):
            return f"(tuple {' '.join(map(wat_type, elements))})"
        case Enum():
            return f"$e{abs(hash(of))}"
        case Scalar() | String():
            return of.wit
    raise TypeError(of)


def _enums(of: Type | None) -> set[Enum]:
    match of:
        case Enum():
            return {of}
        case List(element):
            return _enums(element)
        case Tuple(elements):
            return set().union(*(_enums(element) for element in elements))
    return set()


def _through_memory(function: HostFunction) -> bool:
    return function.fallible or (function.result is not None and len(flat(function.result)) > 1)


def guest_text(
    functions: Sequence[HostFunction],
    body: str,
    *,
    extra: str = "",
    pages: int = 4,
    version: str = "0.1.0",
    package: str = "pie:inferlet",
    run: bool = True,
) -> str:
    """Text of a component whose `run` is `body`, with host function NAME as `$NAME`."""
    interfaces = dict.fromkeys(function.interface for function in functions)
    imports, lowered, core_imports, passed = [], [], [], []
    for number, interface in enumerate(interfaces):
        mine = [function for function in functions if function.interface == interface]
        enums: set[Enum] = set()
        for function in mine:
            for kind in (*function.params, function.result):
                enums |= _enums(kind)
        lines = []
        for index, enum in enumerate(enums):
            cases = " ".join(f'"{name}"' for name in enum.names)
            lines.append(f"(type $d{index} (enum {cases}))")
            lines.append(f'(export "e{index}" (type {wat_type(enum)} (eq $d{index})))')
        for function in mine:
            params = " ".join(
                f'(param "p{n}" {wat_type(kind)})' for n, kind in enumerate(function.params)
            )
            result = "" if function.result is None else wat_type(function.result)
            if function.fallible:
                result = f"(result {result} (error string))"
            result = f"(result {result})" if result else ""
            lines.append(f'(export "{function.name}" (func {params} {result}))')
            lowered.append(
                f'(core func ${function.name} (canon lower (func $i{number} "{function.name}")'
                " (memory $m) (realloc $ra)))"
            )
            core = " ".join(core for kind in function.params for core in flat(kind))
            if _through_memory(function):
                core += " i32"
            returns = ""
            if function.result is not None and not _through_memory(function):
                returns = f"(result {flat(function.result)[0]})"
            core_imports.append(
                f'(import "h" "{function.name}" (func ${function.name} (param {core}) {returns}))'
            )
            passed.append(f'(export "{function.name}" (func ${function.name}))')
        imports.append(
            f'(import "{package}/{interface}@{version}" (instance $i{number} {" ".join(lines)}))'
        )
    lift = """
      (func $run (param "args" (list string)) (result (result string (error string)))
        (canon lift (core func $main "run") (memory $m) (realloc $ra)))
      (export "run" (func $run))"""
    return f"""(component
      {" ".join(imports)}
      (core module $mem (memory (export "memory") {pages})
        (global $heap (export "heap") (mut i32) (i32.const 65536))
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (local $r i32)
          (local.set $r (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
          (global.set $heap (i32.add (local.get $r) (local.get 3)))
          (loop $more
            (if (i32.gt_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))) (then
              (if (i32.lt_s (memory.grow (i32.const 16)) (i32.const 0)) (then unreachable))
              (br $more))))
          (local.get $r)))
      (core instance $mi (instantiate $mem))
      (alias core export $mi "memory" (core memory $m))
      (alias core export $mi "realloc" (core func $ra))
      {" ".join(lowered)}
      (core module $main
        (import "m" "memory" (memory 1))
        (import "m" "heap" (global $heap (mut i32)))
        {" ".join(core_imports)}
        {extra}
        (func (export "run") (param $args i32) (param $count i32) (result i32)
          (local $i i32) (local $n i32)
          {body}))
      (core instance $main (instantiate $main (with "m" (instance $mi))
        (with "h" (instance {" ".join(passed)}))))
      {lift if run else ""})"""


def guest(functions: Sequence[HostFunction], body: str, **options: object) -> bytes:
    """Binary of `guest_text`."""
    return bytes(wat2wasm(guest_text(functions, body, **options)))  # type: ignore[arg-type]


def host(name: str, call: object, *params: Type, returns: Type | None = None,
         fails: bool = False, suspends: bool = False) -> HostFunction:  # fmt: skip
    """A host function of the interface `test`."""
    return HostFunction("test", name, params, returns, fails, call, suspends)  # type: ignore[arg-type]


PASS_ON = STRING  # a function that returns `result<string, string>` writes what `run` can return

# A function that suspends its guest, and a `run` that calls it and returns what it is given.
HOLD = host("hold", lambda state: SUSPENDED, returns=PASS_ON, fails=True, suspends=True)
WAITS = "(call $hold (i32.const 1024)) (i32.const 1024)"


LIMITS = GuestLimits(memory_bytes=64 << 20, table_elements=1000)


def finish(guest: Guest) -> tuple[bool, str]:
    """Polls a guest that never waits to its end."""
    while (status := guest.poll()) is not Status.DONE:
        assert status is Status.RUNNING
    return guest.outcome


def wait(guest: Guest) -> None:
    """Polls a guest until a host function has suspended it."""
    while (status := guest.poll()) is not Status.WAITING:
        assert status is Status.RUNNING
