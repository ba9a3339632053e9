"""What the READMEs of the library say can be typed, and tells something."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.documents import PERSON, Reader, without_the_server
from support.javascript import require_javascript
from support.library import LIBRARY, Library
from support.rust_components import rust_component
from support.shown_blocks import blocks, pages

from pie_py.cli import main

PLACE = "http://127.0.0.1:8000"  # of tools, in the READMEs
ITEMS = '{"question": "Once upon a", "choices": ["time", "flag"], "answer": 0}\n'


@pytest.fixture
def reader(library: Library, tmp_path: Path) -> Iterator[Reader]:
    """Whose commands that need a server of their own share it, if they want the same one."""
    with tempfile.TemporaryDirectory(prefix="pie-") as short:
        environment = {"PIE_PY_KEEP_SERVER": "1", "TMPDIR": short}
        reader = Reader(tmp_path, PIE_PY_ENDPOINT=library.endpoint, **environment)
        reader.writes("items.jsonl", ITEMS)
        reader.writes("prompts.jsonl", '{"prompt": "Once upon a"}\n')
        reader.writes("person.json", PERSON)
        reader.writes("README.md", "Thessel is a country.\n")
        try:
            yield reader
        finally:
            reader.types("pie-py stop")


def test_programs_that_use_a_chat_template_say_so() -> None:
    texts = [main.read_text() for main in LIBRARY.glob("*/main.py")]
    wants = [text for text in texts if re.search(r"\.(user|apply_chat_template)\(", text)]
    assert len(wants) > 10
    assert [text for text in wants if "chat template" not in text] == []


def test_refusals_are_sentences() -> None:
    """`SystemExit(TEXT)` fails with the text alone; another exception has a traceback before it."""
    files = [file for file in LIBRARY.glob("*/*.py") if "raise ValueError" in file.read_text()]
    assert files == []


def types(reader: Reader, line: str) -> str:
    """What a line tells. Without anything that only a shell does it runs in this process: to start
    Python takes most of a command's time.
    """
    words = [*shlex.shlex(line, posix=True, punctuation_chars=True)]
    if line.startswith("pie-py run ") and not {"<", "<<<", "&&", "|"} & {*words}:
        done = CliRunner().invoke(main, shlex.split(line, comments=True)[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}"
        return done.stdout.strip()
    return reader.types(line).strip()


@pytest.mark.nightly
def test_the_commands_of_all_programs_answer(
    library: Library, reader: Reader, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_javascript()
    monkeypatch.setenv("PIE_PY_ENDPOINT", library.endpoint)
    monkeypatch.chdir(reader.folder)
    shown = [block for page in pages() if page.startswith("inferlets/") for block in blocks(page)]
    told: dict[str, Callable[[], str]] = {}
    pool = ThreadPoolExecutor(1)  # of lines with a server of their own, which take longest
    for block in (block for block in shown if "NAME" not in block.code):
        code = without_the_server(block.code.replace(PLACE, url))
        # Built before by other tests, without lines; `pie-py run` would build all of them again.
        if block.page.startswith("inferlets/chat/"):  # which answers what is typed
            code = re.sub(r" *(#.*)?$", " <<< Hi", code.strip(), flags=re.MULTILINE)
        code = re.sub(r"(\w+) --entry rust\b", lambda run: str(rust_component(run[1])), code)
        for line in code.splitlines():
            if line.startswith("env "):
                told[line] = pool.submit(types, reader, line).result
            else:
                told[line] = partial(str, types(reader, line))
    pool.shutdown()
    # The answers of a batch go to a file.
    assert len(told) > 40
    assert [line for line in told if " batch " not in line and not told[line]()] == []


def test_the_library_s_own_page(library: Library, reader: Reader, tmp_path: Path) -> None:
    """Which says how all of them are listed, asked for their options, and copied."""
    [block] = blocks("inferlets/README.md")
    listed, helped, copied = block.code.splitlines()
    assert "beam_search" in reader.types(listed)
    reader.types(copied.replace("NAME", "beam_search"))
    assert (tmp_path / "beam_search/main.py").is_file()
    assert helped.partition("  ")[0] == "pie-py run NAME -- --help"
    for program in sorted(LIBRARY.glob("*/main.py")):
        name = program.parent.name
        assert f"usage: {name}" in library.launch(name, ["--help"]).result()
