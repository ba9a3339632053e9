"""Traps: why a guest has ended that did not return, from Wasmtime's account with its backtrace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

TrapKind: TypeAlias = Literal[
    "unreachable", "stack-overflow", "memory", "table", "out-of-bounds", "too-much-data", "other"
]

# Wasmtime bounds what one call may make the host allocate (128 MiB); its C API cannot change it.
MAX_LIST_ITEMS = 2_796_202  # elements of all lists that a guest passes in one call, 48 bytes each
MAX_TEXT_BYTES = 128 << 20

_FRAMES = 5  # innermost functions that the message names
_DEEP = 10  # calls of one function by itself that are an endless recursion
_LAST_CAUSE = re.compile(r"^(?:\s*\d+: )?(?:wasm trap: )?")
# The functions in which Rust and C++ programs, and the canonical ABI's allocator, give up when they
# get no memory. A program that asks for too much gets none, and aborts by itself;
# Wasmtime's C API has no way to end it at the refusal.
_OUT_OF_MEMORY = re.compile(
    r"alloc_error|raw_vec::(handle_error|capacity_overflow)|rust_oom|__rg_oom|out_of_memory"
    r"|bad_alloc|cabi_realloc"
)

_FUNCTION = re.compile(r" +\d+: +(?:0x[0-9a-f]+ - )?(?P<name>\S.*)")
_INLINED = re.compile(r" +- (?P<name>\S.*)")
_PLACE = re.compile(r" +at (?P<file>.+):(?P<line>\d+):\d+")
_MODULE = re.compile(r"^[^!\s]*!")
_HASH = re.compile(r"::h[0-9a-f]{16}$")
_GENERICS = re.compile(r"<.*>$")
# What lies between a program's own function and the end: Rust's panic, and its library.
_MACHINERY = re.compile(
    r"(__)?rust_|std::(panicking|panic|sys|process|alloc)::|core::(panicking|option|result|slice)::"
    r"|alloc::(alloc|raw_vec)::|panic_abort::"
)
_LIBRARIES = re.compile(r"/rustc[-/]|/library/|/\.cargo/registry/|/rust/inferlet/src/")


class GuestTrap(Exception):
    """A guest broke a rule and has ended. The text is for the user who launched it."""

    def __init__(self, kind: TrapKind, message: str) -> None:
        super().__init__(message)
        self.kind: TrapKind = kind
        self.message = message


def explain(error: str, memory_bytes: int) -> GuestTrap:
    """Makes a trap of Wasmtime's account of it: the kind, what happened, in which functions."""
    frames = read_frames(error)
    lines = error.strip().splitlines()
    reason = _LAST_CAUSE.sub("", lines[-1].strip() if frames else " ".join(error.split()))
    where = f" (in {' < '.join(shown(frames)[:_FRAMES])})" if frames else ""
    kind = _kind_of(reason, [frame.name for frame in frames])
    match kind:
        case "memory":
            what = (
                f"out of memory: the limit is {memory_bytes >> 20} MiB; use less, or raise"
                " the server's `limits.memory`"
            )
            if not frames:
                what += f" ({reason})"
        case "stack-overflow":
            what = "the call stack is exhausted: endless recursion?"
        case "too-much-data":
            what = (
                f"one call passes too much: at most {MAX_LIST_ITEMS} list elements (bytes too) or"
                f" {MAX_TEXT_BYTES >> 20} MiB of text; pass it in parts"
            )
        case "unreachable":
            what = "the program aborted (a panic, a failed assertion or the like; its log may say)"
        case _:
            what = reason
    return GuestTrap(kind, what + where)


def _kind_of(reason: str, frames: list[str]) -> TrapKind:
    if "unreachable" in reason:
        return "memory" if any(map(_OUT_OF_MEMORY.search, frames)) else "unreachable"
    if "call stack exhausted" in reason:
        return "stack-overflow"
    if "memory minimum size" in reason:
        return "memory"
    if "fuel allocated for hostcalls" in reason:
        return "too-much-data"
    if "table" in reason:
        return "table"
    if "out of bounds" in reason:  # Rust's own stack lies in the memory, at its beginning
        endless = len(frames) >= _DEEP and len({*frames[:_DEEP]}) == 1
        return "stack-overflow" if endless else "out-of-bounds"
    return "other"


@dataclass(frozen=True)
class Frame:
    """A function that was under way: its place is `src/lib.rs:12`, or not known."""

    name: str
    place: str = ""
    of_library: bool = False


def read_frames(error: str) -> list[Frame]:
    """The frames of Wasmtime's account of a trap, innermost first, inlined functions too."""
    frames: list[Frame] = []
    for line in error.partition("wasm backtrace:")[2].splitlines():
        if place := _PLACE.fullmatch(line):
            if frames:
                frames[-1] = _placed(frames[-1].name, place["file"], place["line"])
        elif found := _FUNCTION.fullmatch(line) or _INLINED.fullmatch(line):
            name = _HASH.sub("", _MODULE.sub("", found["name"]))
            frames.append(Frame(name, of_library=bool(_MACHINERY.match(name))))
        elif frames:
            break  # the causes follow
    return frames


def shown(frames: list[Frame]) -> list[str]:
    """The program's own frames as the user reads them; all of them if none is its own."""
    own = [frame for frame in frames if not frame.of_library] or frames
    texts = [f"{one.name} ({one.place})" if one.place else one.name for one in own]
    found: list[str] = []
    for text, same in groupby(texts):
        count = sum(1 for _ in same)
        found.append(text if count == 1 else f"{text} × {count}")
    return found


def _placed(name: str, file: str, line: str) -> Frame:
    _, marker, rest = file.rpartition("/src/")
    short = f"src/{rest}" if marker else file.rpartition("/")[2]
    name = _GENERICS.sub("", name)
    return Frame(name, f"{short}:{line}", of_library=bool(_LIBRARIES.search(file)))
