"""A C compiler for tests that keeps what it has compiled, and a look into what it has made."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

KEEPING_CC = Path(__file__).with_name("cc")

_FUNCTION = re.compile(r"^[0-9a-f]+ <(?:part_of_rows|with_\w+).*?>:\n(.*?)^$", re.M | re.S)
_LINE = re.compile(r"^ *([0-9a-f]+):\t(.*)$", re.M)
_BACK = re.compile(r"j\w+ +([0-9a-f]+)")
_PRODUCT = re.compile(r"v?pmaddwd|vpdpwssd|vdpbf16ps")
_STACK = re.compile(r"[^,(]\(%r[sb]p\).*mm|mm.*\(%r[sb]p\)")


def product_loops(library: Path) -> list[list[str]]:
    """Instructions of the innermost loops of the products of weights in few bits, by objdump."""
    command = ("objdump", "-d", "--no-show-raw-insn", str(library))
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout + "\n"
    found = []
    for function in _FUNCTION.findall(text):
        lines = [(int(place, 16), what) for place, what in _LINE.findall(function)]
        jumps = ((place, _BACK.match(what)) for place, what in lines)
        loops = {(int(to[1], 16), place) for place, to in jumps if to and int(to[1], 16) <= place}
        for first, last in loops:
            if any((a, b) != (first, last) and a >= first and b <= last for a, b in loops):
                continue
            body = [what for place, what in lines if first <= place <= last]
            if any(map(_PRODUCT.search, body)):
                found.append(body)
    return found


def on_the_stack(loop: list[str]) -> list[str]:
    """Those that move vectors to or from the stack, or use them there."""
    return list(filter(_STACK.search, loop))
