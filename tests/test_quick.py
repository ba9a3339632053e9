"""The quick check chooses what a change may break."""

from __future__ import annotations

import pytest
from quick import CORE, READERS, ROOMS, ROOT, changed_files, chosen_tests


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ("tests/test_layers.py", "tests/test_layers.py"),
        ("pie_py/wire/rpc.py", "tests/client/test_rpc_codec.py"),
        ("gateway/pie_gateway/page/page.js", "tests/gateway/test_page.py"),
        ("docs/cluster.md", "tests/test_site.py"),
    ],
)
def test_the_nearest_tests_of_a_change_come_first(changed: str, first: str) -> None:
    chosen = chosen_tests([ROOT / changed])
    assert chosen.index(ROOT / first) < 25
    assert len(chosen) == len(set(chosen))
    assert {ROOT / name for name in CORE if name.endswith(".py")} <= set(chosen)


def test_a_test_far_away_comes_after_those_that_protect_most() -> None:
    chosen = chosen_tests([ROOT / "pie_py/wire/rpc.py"])
    assert chosen.index(ROOT / CORE[0]) < chosen.index(ROOT / "tests/client/test_programs.py")


def test_what_the_check_names_is_there() -> None:
    places = [*READERS.items(), *ROOMS.items()]
    names = [*CORE, *(name for place, readers in places for name in (place, *readers))]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_what_git_does_not_know_has_changed() -> None:
    file = ROOT / "tests/not_yet_known.py"
    file.write_text("")
    try:
        assert file in changed_files("HEAD")
    finally:
        file.unlink()
