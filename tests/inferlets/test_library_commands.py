"""What the READMEs of the library say can be typed, and tells something."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.documents import Reader, without_the_server
from support.javascript import require_javascript
from support.library import LIBRARY, Library
from support.rust_components import rust_component

from benchmarks.documents import Block, blocks, pages

PLACE = "http://127.0.0.1:8000"  # of tools, in the READMEs
ITEMS = '[{"question": "Once upon a", "choices": [" time", " flag"], "answer": 0}]'


@pytest.fixture
def reader(library: Library, tmp_path: Path) -> Iterator[Reader]:
    """Whose commands that need a server of their own share it, if they want the same one."""
    with tempfile.TemporaryDirectory(prefix="pie-") as short:
        environment = {"PIE_PY_KEEP_SERVER": "1", "TMPDIR": short}
        reader = Reader(tmp_path, PIE_PY_ENDPOINT=library.endpoint, **environment)
        reader.writes("items.json", ITEMS)
        try:
            yield reader
        finally:
            reader.types("pie-py stop")


@pytest.mark.slow
def test_the_commands_of_all_programs_answer(reader: Reader, url: str) -> None:
    require_javascript()

    def types(block: Block) -> list[str]:
        code = without_the_server(block.code.replace(PLACE, url))
        # Built before by other tests, without lines; `pie-py run` would build all of them again.
        code = re.sub(r"(\w+) --entry rust\b", lambda run: str(rust_component(run[1])), code)
        return [line for line in code.splitlines() if not reader.types(line).strip()]

    shown = [block for page in pages() if page.startswith("inferlets/") for block in blocks(page)]
    with ThreadPoolExecutor(3) as pool:
        silent = list(pool.map(types, (block for block in shown if "NAME" not in block.code)))
    assert len(silent) > 35
    assert not any(silent)


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
