"""The judge of the library's tree of thought: a wrong line of a worked sum is none that holds."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest
from support.library import LIBRARY

QUESTION = "What is 478 + 356?"
RIGHT = [
    "478+356:",
    "ones: 8+6=14 carry 1 so 4",
    "tens: 7+5+1=13 carry 1 so 34",
    "hundreds: 4+3+1=8 so 834",
    "Answer: 834",
]


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    return runpy.run_path(str(LIBRARY / "tree_of_thought/main.py"))


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        (1, "ones: 8+6=15 carry 1 so 5"),
        (1, "ones: 8+6=14 carry 0 so 4"),
        (1, "ones: 8+6=14 so 4"),
        (2, "tens: 7+5+1=13 carry 1 so 44"),
        (3, "hundreds: 4+3+1=8 so 804"),
        (4, "Answer: 835"),
    ],
)
def test_a_wrong_line_does_not_hold(program: dict[str, Any], at: int, wrong: str) -> None:
    assert program["judge"](QUESTION, RIGHT) == len(RIGHT)
    assert program["judge"](QUESTION, [*RIGHT[:at], wrong, *RIGHT[at + 1 :]]) == at


def test_differences(program: dict[str, Any]) -> None:
    lines = ["80-26:", "ones: 0-6 borrow 1, 10-6=4 so 4", "tens: 8-2-1 borrow 0, 8-2-1=5 so 54"]
    assert program["judge"]("What is 80 - 26?", [*lines, "Answer: 54"]) == 4
    assert program["judge"]("What is 80 - 26?", [*lines, "Answer: 64"]) == 3


def test_a_line_of_a_difference_has_an_end(program: dict[str, Any]) -> None:
    """A model that was not trained on such lines took away digits until its tokens were used up."""
    line = re.compile(program["DIFFERENCE"])
    assert line.fullmatch(" borrow 1, 10-6=4 so 4")
    assert line.fullmatch(" borrow 0, 8-2-1=5 so 54")
    assert not line.fullmatch(" borrow 1, 8-1-2-3=1 so 1")


def test_what_is_no_sum_is_refused_with_a_sentence(program: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="two numbers of up to four digits"):
        program["judge"]("What is 5?", [])
