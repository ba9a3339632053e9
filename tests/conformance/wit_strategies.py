"""Arguments for functions of the contract, from their types alone: wrong ones, huge ones, and right
ones.

A new function is called with these by itself. Where a parameter's name says more (`model`, `kind`),
texts that get further than the first check are among them.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, given, settings

from pie_py.build.wit import Function, Interface, Type

MOST = {"u8": 2**8, "u32": 2**32, "u64": 2**64, "s32": 2**31}
HANDLES = st.integers(0, 9)  # small numbers are likely to be live

TEXTS: dict[str, list[str]] = {
    "model": ["test", "vision"],
    "kind": ["regex", "json-schema", "lark"],
    "text": [
        "((a{1,500}){1,500}){1,500}",
        "(((a*)*)*)*b",
        "{" * 5000,
        '{"type": "array", "minItems": 1000000, "items": {"type": "array", "minItems": 1000000}}',
        '{"$ref": "#"}',
        '{"allOf": [{"$ref": "#"}]}',
        'start: start start | ""',
        "start: /(a|b)*c{1,100000}/",
        "[a-c]{1,3}",
    ],
    "parameters": [
        "",
        "{}",
        '{"temperature": NaN}',
        '{"temperature": Infinity, "top_p": -Infinity}',
        '{"temperature": 1e999}',
        '{"top_k": -1, "seed": 1e30}',
        '{"program": "{}", "given": {"5": NaN}}',
        "[" * 100_000,
        '{"seed": 5, "temperature": 0}',
    ],
    "messages": ["[]", "[" * 50_000, '[{"role": 5}]', '[{"role": "user", "content": "x"}]'],
    "url": ["http://[::1", "http://127.0.0.1:99999/", "file:///etc/passwd", "http://a@b:c/"],
    "method": ["GET", "", "G T"],
    "topic": ["t", ""],
    "name": ["x", ""],
    "adapter": ["tilted", "", "nothing"],
    "server": ["tools"],
    "tool": ["add", "fail"],
    "arguments": ["{}", '{"a": NaN}', "[" * 10_000],
    "program": ["interpreter-rust", "../../etc/passwd", "\0"],
}
ANY_TEXT = ["", "x", "ü\0\n", "\U0010ffff" * 3, "x" * 300, "x" * 100_000, "../..", "%s%n{}"]


def drawn(strategy: st.SearchStrategy[list[Any]], count: int) -> list[list[Any]]:
    """Examples of a strategy, as many if there are so many different ones."""
    made: list[list[Any]] = []

    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(one: list[Any]) -> None:
        made.append(one)

    collect()
    return made


def calls(contract: dict[str, Interface]) -> st.SearchStrategy[list[Any]]:
    """One call, `[function, arguments]`, of any function of the interfaces."""
    made = [
        arguments(name, function, interface).map(functools.partial(_call, name))
        for interface in contract.values()
        for name, function in interface.functions.items()
    ]
    return st.one_of(made)


def _call(name: str, arguments: list[Any]) -> list[Any]:
    return [name, arguments]


def arguments(name: str, function: Function, interface: Interface) -> st.SearchStrategy[list[Any]]:
    """Arguments of one function."""
    if name == "wait":  # for what is never ready it waits, and rightly
        return st.sampled_from([[[]], [[0]], [[2**32 - 1]], [[0] * 5000]])
    return st.tuples(*[values(of, param, interface) for param, of in function.params]).map(list)


def values(of: Type, param: str, interface: Interface) -> st.SearchStrategy[Any]:
    """Values of a type."""
    match of.name:
        case "bool":
            return st.booleans()
        case "string":
            return st.sampled_from([*TEXTS.get(param, []) * 3, *ANY_TEXT])
        case "u8" | "u32" | "u64" | "s32":
            end = MOST[of.name]
            low = -end if of.name == "s32" else 0
            edges = [0, 1, 2, 17, end // 2, end - 1, low]
            return HANDLES | st.sampled_from(edges) | st.integers(low, end - 1)
        case "list" if of.arguments == (Type("u8"),):
            return st.sampled_from(BLOBS).map(bytes)
        case "list" if of.arguments == (Type("u32"),):
            return numbers()
        case "list":
            (item,) = of.arguments
            assert item is not None
            return st.lists(values(item, param, interface), max_size=3)
        case "tuple":
            parts = [values(part, param, interface) for part in of.arguments if part]
            return st.tuples(*parts)
    return st.sampled_from(interface.enums[of.name])


def numbers() -> st.SearchStrategy[list[int]]:
    """Spans, masks, tokens: right, odd, overlapping, huge."""
    span = st.tuples(HANDLES, st.integers(0, 20)).map(list)
    return st.one_of(
        span,
        span,
        st.lists(HANDLES, max_size=8),
        st.lists(st.integers(0, 2**32 - 1), max_size=5),
        st.tuples(HANDLES, st.sampled_from([0, 1, 2**31, 2**32 - 1])).map(list),
        st.sampled_from([[1, 1] * 500, [2**32 - 1, 2**32 - 1] * 40, [0] * 100_000, [7] * 5000]),
    )


def _png(width: int, height: int) -> bytes:
    """The head of an image file that says it is very large."""
    head = struct.pack(">II", width, height) + b"\x08\x02\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + head + b"\0" * 40


BLOBS = [
    b"",
    b"\0" * 70_000,
    b"\xff\xfe\xfd",
    _png(60_000, 60_000),
    _png(0, 5),
    _png(2**31 - 1, 1),
    _png(28, 28),
    b"\xff\xd8\xff\xe0\0\x10JFIF" + b"\0" * 50,
]
