"""What follows from the contract has been generated from the contract as it is."""

from __future__ import annotations

from pie_py.build.generate import stale


def test_generated_files_are_up_to_date() -> None:
    assert list(stale()) == [], "run `python -m pie_py.build.generate`"
