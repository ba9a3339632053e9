"""Every function of the contract has cases, and every case names rules that are written down."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conformance.case_files import CaseError, load, step

from pie_py.build.wit import Function, parse

REPOSITORY = Path(__file__).parents[2]
CONTRACT = parse((REPOSITORY / "sdk" / "wit" / "inferlet.wit").read_text())
FUNCTIONS: dict[str, Function] = {
    name: function
    for trait in CONTRACT.worlds["inferlet"].imports
    for name, function in CONTRACT.interfaces[trait].functions.items()
}
CASES = load()


NEVER_RETURN = {"checkpoint"}  # if they succeed


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_held_by_a_success_and_an_error(name: str) -> None:
    steps = [step for case in CASES for step in case.steps if step.function == name]
    if name not in NEVER_RETURN:
        assert any(step.error is None for step in steps), "no case calls it with success"
    result = FUNCTIONS[name].result
    if result is not None and result.name == "result":
        assert any(step.error is not None for step in steps), "no case makes it fail"


def test_cases_call_only_what_there_is() -> None:
    called = {step.function for case in CASES for step in case.steps if step.function}
    assert called - set(FUNCTIONS) == {"client.send", "client.receive", "client.log"}


def test_cases_have_names_of_their_own_and_rules() -> None:
    names = [case.id for case in CASES]
    assert len(set(names)) == len(names)
    assert all(case.rules for case in CASES)


def test_rules_are_written_down_and_each_has_a_case() -> None:
    text = (REPOSITORY / "docs" / "contract.md").read_text()
    written = re.findall(r"^- \*\*([A-Z]+[0-9]+)\*\*", text, re.MULTILINE)
    assert len(set(written)) == len(written)
    held = {rule for case in CASES for rule in case.rules}
    assert held - set(written) == set()
    elsewhere = set(re.findall(r"^- \*\*([A-Z]+[0-9]+)\*\* \(\[", text, re.MULTILINE))
    assert set(written) - held - elsewhere == set()


@pytest.mark.parametrize("text", ["nonsense", "f(", "f(1) !", "assert", "x = 3"])
def test_a_step_that_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(CaseError, match="here: line 3"):
        step(text, 3, "here")
