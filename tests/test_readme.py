"""The README's commands and programs work as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
INSTALL, CHECK, RUN, SERVE = SHELL
INFERLET, CLIENT = PYTHON


def pie_py(
    arguments: list[str], folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pie_py", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "best_word.py").write_text(INFERLET)
    return tmp_path


def test_the_commands_come_first_and_are_one_line_each() -> None:
    assert TEXT.index(INSTALL) < TEXT.index(CHECK) < TEXT.index("## ")
    assert INSTALL.count("\n") == CHECK.count("\n") == 1
    assert CHECK == "./check\n"
    # CI runs that very command.
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("exec ./check")


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
def test_the_main_job() -> None:
    install, pip, run = (shlex.split(part) for part in INSTALL.split("&&"))
    assert install == ["python3", "-m", "venv", ".venv"]
    assert pip[:2] == [".venv/bin/pip", "install"]  # what ./check does, too
    assert run[0] == ".venv/bin/pie-py"
    assert run[run.index("--model") + 1] == "smollm2"
    done = pie_py(run[1:], ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of Japan is Tokyo.\n"


@pytest.mark.slow
def test_the_inferlet_runs_from_its_source(folder: Path) -> None:
    assert len(INFERLET.splitlines()) <= 12
    command = shlex.split(RUN)
    done = pie_py(command[1:], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("most likely token: ")


@pytest.mark.slow
def test_serving(folder: Path) -> None:
    serve, *others = SERVE.splitlines()
    command = shlex.split(serve, comments=True)
    assert command == ["pie-py", "serve"]
    with tempfile.TemporaryDirectory(prefix="pie-") as place:
        endpoint = f"ipc://{place}/s"
        process = subprocess.Popen(
            [sys.executable, "-m", "pie_py", *command[1:], "--endpoint", endpoint],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PIE_PY_DATA_FOLDER": place},
        )
        try:
            assert process.stderr is not None
            assert any(line.startswith("ready at") for line in process.stderr), "it has ended"
            for line in others:
                command = shlex.split(line)
                done = pie_py(command[1:], folder, PIE_PY_ENDPOINT=endpoint)
                assert done.returncode == 0, (line, done.stderr)
            assert "best_word" in done.stdout  # what ps shows
            client = subprocess.run(
                [sys.executable, "-c", CLIENT],
                cwd=folder,
                env={**os.environ, "PIE_PY_ENDPOINT": endpoint},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert client.returncode == 0, client.stderr
            assert client.stdout.startswith("most likely token: ")
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_the_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
