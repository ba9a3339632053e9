"""A program of several modules, from its folder to its answer, as a single source is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pie_py.client.sync import Client

MODULES = {
    "main.py": "import json\n"
    "import helper\n"
    "from parts.words import joined\n\n"
    "async def main(args):\n"
    "    return joined(helper.doubled(args)) if args else helper.fail()\n",
    "helper.py": "def doubled(words):\n"
    "    return [2 * word for word in words]\n\n"
    "def fail():\n"
    "    raise ValueError('no words')\n",
    "parts/words.py": "from . import marks\n\n"
    "def joined(words):\n"
    "    return marks.BETWEEN.join(words)\n",
    "parts/marks.py": "BETWEEN = '-'\n",
    "data.json": "[]",
    "unused.py": "def",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "doubler"
    for path, source in MODULES.items():
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text(source)
    return made


def run(client: Client, program: str, *args: str) -> str:
    return client.launch(program, args).result()


def test_a_folder_is_uploaded_and_launched(client: Client, folder: Path) -> None:
    digest = client.upload(folder)
    assert client.upload(folder / "main.py", name="other") == digest
    for name in (digest, "doubler", "other"):
        assert run(client, name, "a", "b") == "aa-bb"
    for _ in range(2):  # compiled, then as it was kept
        failed = client.launch("doubler", [])
        with pytest.raises(Exception, match="no words") as error:
            failed.result()
        assert 'File "doubler/main.py", line 6, in main' in str(error.value)
        assert 'File "doubler/helper.py", line 5, in fail' in str(error.value)
        assert "raise ValueError('no words')" in str(error.value)
    (folder / "parts" / "marks.py").write_text("BETWEEN = '+'\n")
    changed = client.upload(folder)
    assert changed != digest
    assert (run(client, "doubler", "a", "b"), run(client, digest, "a", "b")) == ("aa+bb", "aa-bb")
