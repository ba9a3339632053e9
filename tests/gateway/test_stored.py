"""Which responses are kept, and for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from pie_gateway.openai import stored
from pie_gateway.openai.stored import Responses, Stored
from pie_gateway.problems import Problem


def test_who_has_most_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MOST_BYTES", 100)
    monkeypatch.setattr(stored, "BESIDE", 0)
    kept = Responses(Path())
    kept.keep("ann", "a", Stored(b"." * 20, b""))
    for number in range(50):
        kept.keep("bob", f"{number}", Stored(b"." * 20, b""))
        kept.keep("bob", f"{number}", Stored(b"." * 10, b""))  # of the same name
    assert kept.find("ann", "a").size == 20
    assert kept.find("bob", "43").size == 10
    for user, name in (("bob", "42"), ("ann", "49"), ("bob", "a")):
        with pytest.raises(Problem, match="is kept"):
            kept.find(user, name)
    kept.forget("ann", "a")
    with pytest.raises(Problem, match="is kept"):
        kept.forget("ann", "a")


def test_items_are_found_by_their_names() -> None:
    kept = Responses(Path())
    for number in range(3):
        items = b'[{"id": "same", "n": %d}, {"id": "a%d"}]' % (number, number)
        kept.keep("ann", f"r{number}", Stored(b"{}", items, names=("same", f"a{number}")))
    found = kept.find_items("ann", {"same": "input[0]", "a0": "input[1]"})
    assert found == {"same": {"id": "same", "n": 2}, "a0": {"id": "a0"}}
    kept.forget("ann", "r0")
    for user, name in (("ann", "a0"), ("bob", "same")):
        with pytest.raises(Problem, match="no kept response has an item"):
            kept.find_items(user, {name: "input[0]"})
