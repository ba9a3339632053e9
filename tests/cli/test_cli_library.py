"""The library on the command line: listed, found by name, copied."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pie_py.build.library import library
from pie_py.cli import main
from pie_py.cli.target import find_target

LIBRARY = Path(__file__).parents[2] / "inferlets"


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_the_library_is_listed() -> None:
    listed = json.loads(invoke("inferlets", "--json").stdout)
    sources = [*LIBRARY.glob("*/main.py"), *LIBRARY.glob("*/inferlet.toml")]
    folders = {source.parent.name for source in sources}
    assert {row["name"] for row in listed} == folders
    assert all(10 < len(row["description"]) <= 100 for row in listed)
    assert "beam_search" in invoke("inferlets").stdout


@pytest.mark.parametrize("row", list(library()), ids=lambda row: row["name"])
def test_each_can_be_run_by_name_and_says_what_to_expect(row: dict[str, str]) -> None:
    found = find_target(row["name"])
    assert found is not None
    assert found.path.exists()
    readme = (LIBRARY / row["name"] / "README.md").read_text(encoding="utf-8")
    assert f"pie-py run {row['name']}" in readme
    assert "## What to expect" in readme


def test_a_copy_is_there_to_be_changed(tmp_path: Path) -> None:
    copied = invoke("inferlets", "copy", "beam_search", tmp_path / "mine")
    assert copied.exit_code == 0, copied.output
    assert ast.parse((tmp_path / "mine/main.py").read_text())
    found = find_target(str(tmp_path / "mine"))
    assert found is not None
    assert found.kind == "python"
    again = invoke("inferlets", "copy", "beam_search", tmp_path / "mine")
    assert again.exit_code == 2
    assert "name another folder" in again.output
    unknown = invoke("inferlets", "copy", "no_such_one")
    assert unknown.exit_code == 2
    assert "lists them" in unknown.output
