"""A program of several modules, from its folder to its answer, as a single source is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import Server

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


@pytest.mark.slow
def test_the_command_line_takes_a_folder(server: Server, folder: Path) -> None:
    def cli(*args: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pie_py", *map(str, args)]
        return subprocess.run(
            [*command, "--endpoint", server.endpoint], capture_output=True, text=True, timeout=120
        )

    for target in (folder, folder / "main.py"):
        shown = cli("run", target, "a", "b")
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, "aa-bb\n", "")
    digest = cli("upload", folder).stdout.strip()
    assert cli("launch", "doubler", "c").stdout == "cc\n"
    listed = json.loads(cli("programs", "--json").stdout)
    assert digest in {program["hash"] for program in listed}
    (folder / "helper.py").write_text("def f(:\n")
    refused = cli("run", folder)
    assert refused.returncode != 0
    assert "doubler/helper.py, line 1: " in refused.stderr
    (folder / "main.py").unlink()
    assert ": no inferlet is in it" in cli("run", folder).stderr
