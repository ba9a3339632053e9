"""Every type of the contract, in and out of a guest, unchanged."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.wat_guests import OK, finish, guest, host, loads

from pie_control.errors import ApiError
from pie_control.wasm.engine import Component, Engine, GuestLimits
from pie_control.wasm.guest import Guest
from pie_control.wasm.linker import MOST_ERROR, Linker
from pie_control.wasm.types import (
    BOOL,
    F32,
    F64,
    S32,
    STRING,
    STRING_LIST,
    U8_LIST,
    U32,
    U32_ARRAY,
    U32_LIST,
    U64,
    Enum,
    List,
    Tuple,
    Type,
)
from pie_control.wasm.values import MOST_ITEMS, MOST_TEXT

COLOR = Enum(("red", "green", "dark-blue"))
WORDS = st.integers(0, 2**32 - 1)
LONGS = st.integers(0, 2**64 - 1)
SINGLES = st.floats(width=32, allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)

VALUES: list[tuple[Type, st.SearchStrategy[Any]]] = [
    (BOOL, st.booleans()),
    (S32, st.integers(-(2**31), 2**31 - 1)),
    (U32, WORDS),
    (U64, LONGS),
    (F32, SINGLES),
    (F64, st.floats(allow_nan=False)),
    (STRING, TEXT),
    (COLOR, st.sampled_from(COLOR.names)),
    (U8_LIST, st.binary(max_size=300)),
    (U32_LIST, st.lists(WORDS, max_size=60)),
    (List(S32), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=60)),
    (List(U64), st.lists(LONGS, max_size=60)),
    (List(F32), st.lists(SINGLES, max_size=60)),
    (List(F64), st.lists(st.floats(allow_nan=False), max_size=60)),
    (List(BOOL), st.lists(st.booleans(), max_size=60)),
    (STRING_LIST, st.lists(TEXT, max_size=10)),
    (List(U8_LIST), st.lists(st.binary(max_size=20), max_size=10)),
    (List(COLOR), st.lists(st.sampled_from(COLOR.names), max_size=10)),
    (List(Tuple(STRING, U32)), st.lists(st.tuples(TEXT, WORDS), max_size=10)),
    (Tuple(STRING, STRING), st.tuples(TEXT, TEXT)),
    (Tuple(BOOL, U64), st.tuples(st.booleans(), LONGS)),
    (
        Tuple(U32_LIST, List(F32)),
        st.tuples(st.lists(WORDS, max_size=30), st.lists(SINGLES, max_size=30)),
    ),
    (List(List(U32)), st.lists(st.lists(WORDS, max_size=5), max_size=5)),
]

LIMITS = GuestLimits(memory_bytes=64 << 20, table_elements=100)
_made: dict[tuple[Engine, Type], tuple[Linker, Component]] = {}


def echo(engine: Engine, kind: Type, value: Any) -> Any:
    """Gives a guest a value; what the guest then passes to the host."""
    if (engine, kind) not in _made:
        functions = [
            host("give", lambda state: state["in"], returns=kind),
            host("take", lambda state, value: state.update(out=value), kind),
        ]
        linker = Linker(engine, functions)
        if loads(kind, 0).count("load") > 1:
            body = f"(call $give (i32.const 1024)) (call $take {loads(kind, 1024)}) {OK}"
        else:
            body = f"(call $take (call $give)) {OK}"
        _made[engine, kind] = linker, engine.load(guest(functions, body))
    linker, component = _made[engine, kind]
    state = {"in": value}
    made = Guest(linker, component, state, LIMITS)
    made.start([])
    assert finish(made) == (True, "")
    return state["out"]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[kind.wit for kind, _ in VALUES])
def test_values_pass_unchanged(engine: Engine, kind: Type, values: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(values)
    def check(value: Any) -> None:
        found = echo(engine, kind, value)
        assert found == value
        assert type(found) is type(value)

    check()


@pytest.mark.parametrize("count", [0, 1, 23, 24, 25, 26, 10_000])
def test_lists_of_any_length(engine: Engine, count: int) -> None:
    numbers = list(range(count))
    assert echo(engine, U32_LIST, numbers) == numbers
    assert echo(engine, U32_LIST, tuple(numbers)) == numbers
    assert echo(engine, U32_LIST, np.arange(count, dtype=np.uint32)) == numbers
    data = bytes(number % 251 for number in numbers)
    for form in (data, bytearray(data), memoryview(data)):
        assert echo(engine, U8_LIST, form) == data


@pytest.mark.parametrize("kind", [STRING_LIST, List(Tuple(STRING, U32))])
def test_lists_that_take_long_to_read_are_refused(engine: Engine, kind: Type) -> None:
    found: list[Any] = []
    functions = [
        host("give", lambda state: state, returns=kind),
        host("take", lambda state, value: found.append(len(value)), kind, fails=True),
    ]
    take = f"(call $take {loads(kind, 1024)} (i32.const 2048))"
    body = f"(call $give (i32.const 1024)) {take} (i32.const 2048)"
    linker = Linker(engine, functions)
    component = engine.load(guest(functions, body))
    item: Any = "" if kind is STRING_LIST else ("", 0)
    for count in (MOST_ITEMS, MOST_ITEMS + 1):
        made = Guest(linker, component, [item] * count, LIMITS)
        made.start([])
        outcome = finish(made)
    assert found == [MOST_ITEMS]
    assert outcome == (False, "limit-exceeded: a list of 4097 items; 4096 at most")


def test_arrays(engine: Engine) -> None:
    numbers = np.arange(1000, dtype=np.uint32)[::2]
    found = echo(engine, U32_ARRAY, numbers)
    assert found.dtype == np.uint32
    assert found.flags.owndata
    np.testing.assert_array_equal(found, numbers)
    floats = np.linspace(0, 1, 50, dtype=np.float32)
    assert echo(engine, List(F32), floats) == floats.tolist()
    doubles = floats.astype(np.float64)
    assert echo(engine, List(F32), doubles) == floats.tolist()


def test_nan_passes(engine: Engine) -> None:
    assert np.isnan(echo(engine, F64, float("nan")))
    assert struct.pack("f", echo(engine, F32, -0.0)) == struct.pack("f", -0.0)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (U32, -1),
        (U32, 2**32),
        (U32, "1"),
        (S32, 2**31),
        (STRING, b"bytes"),
        (STRING, "\ud800"),
        (U32_LIST, [1, -1]),
        (U32_LIST, [1] * 40 + [2**32]),
        (U32_LIST, np.array([1.5])),
        (STRING_LIST, ["a", 1]),
        (List(Tuple(STRING, U32)), [("a", 1), ("b",)]),
        (Tuple(STRING, STRING), ("a", "b", "c")),
    ],
    ids=str,
)
def test_the_guest_is_told_of_a_wrong_value(
    start: Callable[..., Guest], kind: Type, value: Any
) -> None:
    """The host's mistake becomes an error text; half-written values are freed."""
    functions = [
        host("give", lambda state: value, returns=kind, fails=True),
        host("pass", lambda state: "", returns=STRING, fails=True),
    ]
    body = "(call $give (i32.const 1024)) (i32.const 1024)"
    ok, text = finish(start(functions, body))
    assert not ok
    assert text.startswith("internal: test.give failed: ")


def test_long_texts_are_refused_and_long_errors_cut(engine: Engine) -> None:
    def take(state: Any, text: str) -> None:
        found.append(len(text))
        raise ApiError("not-found", text)

    found: list[int] = []
    functions = [
        host("give", lambda state: state, returns=STRING),
        host("take", take, STRING, fails=True),
    ]
    body = f"(call $give (i32.const 1024)) (call $take {loads(STRING, 1024)} (i32.const 2048))"
    linker = Linker(engine, functions)
    component = engine.load(guest(functions, f"{body} (i32.const 2048)"))
    outcomes = []
    for size in (MOST_TEXT, MOST_TEXT + 1):
        made = Guest(linker, component, "x" * size, LIMITS)
        made.start([])
        outcomes.append(finish(made))
    assert found == [MOST_TEXT]
    cut = f"not-found: {'x' * MOST_ERROR}"[:MOST_ERROR] + "…"
    refused = f"limit-exceeded: a text of {MOST_TEXT + 1} bytes; {MOST_TEXT} at most"
    assert outcomes == [(False, cut), (False, refused)]
