"""A component built against the first state of the contract runs on as it did.

`old/first_contract.wasm` is the Rust interpreter, built with the SDK of the commit in which the
contract had 48 functions, `old/first_contract.wit`. It is kept as it is: it stands for components
of users, which nobody builds again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance.case_files import Case, load
from conformance.conformance_server import Place
from conformance.runner import Run

from pie_py.build.wit import parse

HERE = Path(__file__).parent
OLD = parse((HERE / "old" / "first_contract.wit").read_text())
NEW = parse((HERE.parents[1] / "sdk" / "wit" / "inferlet.wit").read_text())
NAMES = {
    name for trait in OLD.worlds["inferlet"].imports for name in OLD.interfaces[trait].functions
}
OWN = NAMES | {"client.send", "client.receive", "client.log", None}
CASES = [case for case in load() if {step.function for step in case.steps} <= OWN]


def test_nothing_of_the_first_contract_has_changed() -> None:
    assert (OLD.name, OLD.version) == (NEW.name, NEW.version)
    for trait in OLD.worlds["inferlet"].imports:
        old, new = OLD.interfaces[trait], NEW.interfaces[trait]
        assert trait in NEW.worlds["inferlet"].imports
        assert old.enums.items() <= new.enums.items()
        for name, function in old.functions.items():
            assert new.functions[name].result == function.result, name
            kinds = [of for _, of in function.params]
            assert [of for _, of in new.functions[name].params] == kinds, name
    assert OLD.worlds["inferlet"].exports == NEW.worlds["inferlet"].exports


def test_many_cases_are_in_its_reach() -> None:
    assert len(NAMES) == 48
    assert len(CASES) > 40
    called = {step.function for case in CASES for step in case.steps}
    assert NAMES - called == set()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(place: Place, case: Case) -> None:
    with place.server.client() as client:
        program = client.upload(HERE / "old" / "first_contract.wasm", name="first-contract")
        Run(client, program, place.names, place.functions).run(case)
