"""Each function of the contract is of a kind that durable instances know."""

from __future__ import annotations

from pie_control.api.binder import SIGNATURES
from pie_control.durable.calls import ANSWERED, COMPUTED, OUTSIDE, QUIET_TAKES
from pie_control.instances.futures import TAKERS
from pie_py.build import wit

TABLES = (ANSWERED, COMPUTED, OUTSIDE, QUIET_TAKES)
# Their futures are given up at once, or nothing else waits for them.
NO_FUTURE = {"prefix-cache.match-prefix"}


def futures() -> set[str]:
    """The functions that open futures, by their comments' lines `Gives:`."""
    return {
        f"{name}.{function}"
        for name, interface in wit.contract().interfaces.items()
        for function, facts in interface.functions.items()
        if "Gives:" in facts.doc
    }


def test_every_name_is_one_of_the_contract() -> None:
    known = {f"{interface}.{name}" for interface in SIGNATURES for name in SIGNATURES[interface]}
    assert set().union(*TABLES) <= known


def test_every_future_is_known() -> None:
    found = futures()
    assert len(found) > 30
    assert found - NO_FUTURE == set(COMPUTED) | set(OUTSIDE)


def test_what_consumes_a_future_is_known() -> None:
    takes = {
        name
        for functions in SIGNATURES.values()
        for name, function in functions.items()
        if name.startswith("take") and list(function.params) == ["future"]
    }
    assert takes == set(TAKERS)
