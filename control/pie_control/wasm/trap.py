"""Why a guest ended that did not return."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from pie_control.wasm.backtrace import read_frames, shown

if TYPE_CHECKING:
    from pie_control.wasm.limits import GuestLimits

TrapKind: TypeAlias = Literal[
    "unreachable", "stack-overflow", "memory", "table", "out-of-bounds", "too-much-data", "other"
]

# Wasmtime bounds what one call may make the host allocate (128 MiB); its C API cannot change it.
MAX_LIST_ITEMS = 2_796_202  # elements of all lists that a guest passes in one call, 48 bytes each
MAX_TEXT_BYTES = 128 << 20

_FRAMES = 5  # innermost functions that the message names
_LAST_CAUSE = re.compile(r"^(?:\s*\d+: )?(?:wasm trap: )?")
# The functions in which Rust and C++ programs, and the canonical ABI's allocator, give up when they
# get no memory. Wasm tells a program that asks for too much so, and the program aborts by itself;
# Wasmtime's C API has no way to end it at the refusal.
_OUT_OF_MEMORY = re.compile(
    r"alloc_error|raw_vec::(handle_error|capacity_overflow)|rust_oom|__rg_oom|out_of_memory"
    r"|bad_alloc|cabi_realloc"
)


class GuestTrap(Exception):
    """A guest broke a rule and has ended. The text is for the user who launched it."""

    def __init__(self, kind: TrapKind, message: str) -> None:
        super().__init__(message)
        self.kind: TrapKind = kind
        self.message = message


def explain(error: str, limits: GuestLimits) -> GuestTrap:
    """Makes a trap of Wasmtime's account of it: the kind, what happened, in which functions."""
    frames = read_frames(error)
    lines = error.strip().splitlines()
    reason = _LAST_CAUSE.sub("", lines[-1].strip() if frames else " ".join(error.split()))
    where = f" (in {' < '.join(shown(frames)[:_FRAMES])})" if frames else ""
    kind = _kind_of(reason, [frame.name for frame in frames])
    match kind:
        case "memory":
            what = (
                f"out of memory: the limit is {limits.memory_bytes >> 20} MiB; use less, or raise"
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
    if "out of bounds" in reason:
        return "out-of-bounds"
    return "other"
