"""The binder refuses an implementation that does not fit the contract."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.rig import host_functions

from pie_control.api.binder import SIGNATURES, BindingError, implement
from pie_control.wasm.types import U32, U32_ARRAY, U32_LIST
from pie_py.wire.plan import DETAILS

HERE = sys.modules[__name__]


def get_next_dist(instance: Any, queue: int, embed: int, k: int) -> int:
    return 1


def take_dist(instance: Any, future: int) -> Any:
    return [], []


def get_hidden(instance: Any, queue: int, embeds: Any) -> int:
    return 1


def embed_txt(instance: Any, queue: int, tokens: Any, positions: Any, embeds: Any) -> None:
    """Named as the contract has it."""


def test_names_and_types_are_those_of_the_contract() -> None:
    first, second, *_ = implement("output-text", HERE, suspends=("take-dist",))
    assert (first.interface, first.name, first.call) == (
        "output-text",
        "get-next-dist",
        get_next_dist,
    )
    assert (first.params, first.result, first.fallible) == ((U32, U32, U32), U32, True)
    assert (first.suspends, second.suspends) == (False, True)


def test_arrays_instead_of_lists() -> None:
    (function,) = implement("input-text", HERE, arrays=("tokens",))
    assert function.params == (U32, U32_ARRAY, U32_LIST, U32_LIST)
    with pytest.raises(BindingError, match=r"no `list<u32>` for \{'queue'\}"):
        implement("input-text", HERE, arrays=("queue",))


def test_a_function_is_missing() -> None:
    some = {name: getattr(HERE, name) for name in ("get_next_dist", "take_dist")}
    with pytest.raises(BindingError, match=r"`output-text`: missing \['get-hidden'\]"):
        implement("output-text", SimpleNamespace(**some))


def test_the_first_source_that_has_a_function_gives_it() -> None:
    other = SimpleNamespace(take_dist=lambda instance, future: None)
    first, second, *_ = implement("output-text", other, HERE)
    assert (first.call, second.call) == (get_next_dist, other.take_dist)


def test_parameters_are_others() -> None:
    def embed_txt(instance: Any, queue: int, positions: Any, tokens: Any, embeds: Any) -> None:
        """Two parameters have changed places."""

    with pytest.raises(BindingError, match="`embed-txt` takes"):
        implement("input-text", SimpleNamespace(embed_txt=embed_txt))


def test_suspends_names_another_function() -> None:
    with pytest.raises(BindingError, match="`suspends`"):
        implement("output-text", HERE, suspends=("embed-txt",))


def test_the_server_implements_every_interface() -> None:
    assert {function.interface for function in host_functions()} == set(SIGNATURES)


def test_details_are_those_of_the_wire() -> None:
    """The worker is told a detail by its index."""
    assert SIGNATURES["introspect"]["forward-with-attention"].params["detail"].wit == (
        f"enum {{ {', '.join(DETAILS)} }}"
    )
