"""Reads Wasmtime's backtrace: functions, and source lines where the engine tells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

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
    told = [f"{one.name} ({one.place})" if one.place else one.name for one in own]
    found: list[str] = []
    for text, same in groupby(told):
        count = sum(1 for _ in same)
        found.append(text if count == 1 else f"{text} × {count}")
    return found


def _placed(name: str, file: str, line: str) -> Frame:
    _, marker, rest = file.rpartition("/src/")
    short = f"src/{rest}" if marker else file.rpartition("/")[2]
    name = _GENERICS.sub("", name)
    return Frame(name, f"{short}:{line}", of_library=bool(_LIBRARIES.search(file)))
