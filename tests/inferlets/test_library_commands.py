"""What the READMEs of the library say can be typed, and tells something."""

from __future__ import annotations

import re
import shlex
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
import pytest
from support.javascript import require_javascript
from support.library import LIBRARY, Library

from pie_py.cli import main
from pie_py.cli.arguments import with_files
from pie_py.cli.run import command
from pie_py.cli.target import find_target, target_bytes

PLACE = "http://127.0.0.1:8000"  # of tools, in the READMEs
ITEMS = '[{"question": "Once upon a", "choices": [" time", " flag"], "answer": 0}]'


def commands(readme: Path) -> list[list[str]]:
    """The words after `pie-py run` of each command of a README, but those that build a crate."""
    lines = re.findall(r"^    pie-py run (.*)$", readme.read_text(encoding="utf-8"), re.M)
    return [shlex.split(line) for line in lines if "--entry rust" not in line]


def test_programs_that_use_a_chat_template_say_so() -> None:
    texts = [main.read_text() for main in LIBRARY.glob("*/main.py")]
    wants = [text for text in texts if re.search(r"\.(user|apply_chat_template)\(", text)]
    assert len(wants) > 10
    assert [text for text in wants if "chat template" not in text] == []


def test_refusals_are_sentences() -> None:
    """`SystemExit(TEXT)` fails with the text alone; another exception has a traceback before it."""
    files = [file for file in LIBRARY.glob("*/*.py") if "raise ValueError" in file.read_text()]
    assert files == []


def test_the_commands_of_all_programs_answer(
    library: Library, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_javascript()
    (tmp_path / "items.json").write_text(ITEMS)
    monkeypatch.chdir(tmp_path)
    silent = []
    for at_once in zip_longest(*map(commands, sorted(LIBRARY.glob("*/README.md")))):
        running = [(words, launch(library, words, url)) for words in at_once if words]
        for words, instance in running:
            told = "".join(map(str, instance)) + str(instance.result())
            if not told or ("--help" in words and f"usage: {words[0]}" not in told):
                silent.append((words, told))
    assert not silent


def launch(library: Library, words: list[str], url: str) -> Any:
    """Launches what a command runs; the server has the models and the hosts that it names."""
    # Click keeps the option for help that a command had first: as below `pie-py`, for other tests.
    parent = click.Context(main, **main.context_settings)
    given = command.make_context("run", words[:], parent).params
    target = find_target(given["target"], given["entry"])
    assert target is not None, words
    program = library.client.upload(target_bytes(target), name=target.name)
    args = [arg.replace(PLACE, url) for arg in with_files(given["args"])]
    return library.client.launch(program, args)
