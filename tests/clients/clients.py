"""The scripts of clients, and the environments that they run in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SCRIPTS, PACKAGES = HERE / "scripts", HERE / "packages"
SECONDS = 1500  # for all cases of a client, before it is stopped
NPM = "package.json"  # of all scripts in JavaScript
MARK = "installed"  # a file that names the packages, once all are there


class NotRun(RuntimeError):
    """A client's environment cannot be made; the text says why."""


class Outcome(NamedTuple):
    """What came of a case: `right`, `refused`, `wrong`, or `unjudged`: a model's wit decides."""

    case: str
    outcome: str
    detail: str


def names() -> list[str]:
    """All clients: the names of their scripts."""
    return sorted(script.stem for script in SCRIPTS.iterdir() if script.suffix in (".py", ".mjs"))


def prepared(name: str, cache: Path) -> list[str]:
    """The command of a client's script, whose packages are installed unless they are already.

    Raises:
        NotRun: with the installer's last words.
    """
    script = SCRIPTS / f"{name}.py"
    if script.exists():
        # -P: a script may have the name of its client's package, which it must not hide.
        return [str(_environment(name, cache / name)), "-P", str(script)]
    return ["node", str(_node_folder(cache / "node") / f"{name}.mjs")]


def outcomes(command: list[str], url: str, model: str) -> Iterator[Outcome]:
    """Runs a script against a server, and yields its cases as they end.

    A script that fails outside of a case, or does not end, is a case that is wrong.
    """
    environment = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        tempfile.TemporaryFile("w+", errors="replace") as said,
        subprocess.Popen(
            ["timeout", str(SECONDS), *command, url, model],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        yield from (Outcome(**json.loads(line)) for line in process.stdout)
        if process.wait():
            said.seek(0)
            words = said.read()[-400:]
            yield Outcome("the script itself", "wrong", f"status {process.returncode}: {words}")


def _environment(name: str, folder: Path) -> Path:
    """The Python of a virtual environment with what `packages/NAME.txt` names."""
    wanted, python = PACKAGES / f"{name}.txt", folder / "bin/python"
    if not _holds(folder, wanted):
        _install(sys.executable, "-m", "venv", "--clear", str(folder))
        _install(str(python), "-m", "pip", "install", "--quiet", "--requirement", str(wanted))
        shutil.copy(wanted, folder / MARK)
    return python


def _node_folder(folder: Path) -> Path:
    """A folder with the scripts beside what they import: Node looks nowhere else."""
    if shutil.which("npm") is None:
        raise NotRun("there is no npm")
    if not _holds(folder, PACKAGES / NPM):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(PACKAGES / NPM, folder)
        _install("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder))
        shutil.copy(PACKAGES / NPM, folder / MARK)
    for script in [*SCRIPTS.glob("*.mjs"), *HERE.glob("*.mjs")]:
        shutil.copy(script, folder)
    return folder


def _holds(folder: Path, wanted: Path) -> bool:
    """True if these packages have been installed there, to the end."""
    mark = folder / MARK
    return mark.is_file() and mark.read_bytes() == wanted.read_bytes()


def _install(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotRun((done.stdout + done.stderr).strip()[-400:])
