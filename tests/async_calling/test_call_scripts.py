"""Which call a script has written first."""

from __future__ import annotations

import pytest
from support.forced_calls import Order, Script, ScriptedCall
from support.tokenizers_of_tests import dialect, stop_token


@pytest.mark.parametrize(
    ("order", "first"), [(Order.LPT, "b"), (Order.GIVEN, "a"), (Order.RANDOM, None)]
)
def test_which_call_a_script_takes_first(order: Order, first: str | None) -> None:
    calls = [ScriptedCall("a", "f()", seconds=1), ScriptedCall("b", "f()", seconds=2)]
    ready = [Script(calls, order=order, seed=seed)._ready() for seed in range(20)]
    taken = {call.identifier for call in ready if call is not None}
    assert taken == ({first} if first else {"a", "b"})


def test_calls_that_expect_no_answer_are_written_once_each_and_not_waited_for() -> None:
    calls = [
        ScriptedCall("", "f()"),
        ScriptedCall("a", "f()"),
        ScriptedCall("", "f()"),
        ScriptedCall("", "g()", after=("a",)),
        ScriptedCall("b", "f()"),
    ]
    form = dialect(True)
    script = Script(calls, order=Order.GIVEN, most_a_turn=1, asynchronous=False)

    def turn() -> str:
        tokens: list[int] = []
        while not tokens or tokens[-1] != stop_token():
            tokens.append(script.next(form, stop_token()))
        return form.codec.decode(tokens[:-1])

    assert turn() == "[CALL]f()[END][CALL]a[HEAD]f()[END][CALL]f()[END]"
    script.arrived("a")
    assert turn() == "[CALL]g()[END][CALL]b[HEAD]f()[END]"
    script.arrived("b")
    assert turn() == "Done."


def test_scripts_that_are_wrong() -> None:
    with pytest.raises(ValueError, match="the same identifier"):
        Script([ScriptedCall("a", "f()"), ScriptedCall("a", "g()")])
    for found in ({}, {"calls": [1]}, {"calls": [{"id": "a", "call": "f()", "seconds": "x"}]}):
        with pytest.raises(ValueError, match=r"no script|could not convert"):
            Script.from_json(found)
