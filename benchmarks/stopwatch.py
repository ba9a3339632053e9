"""`stopwatch`: how long a new user takes, from a clone to a program that another process calls.

All commands are the documents' own, as they stand there.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.documents import ROOT, blocks
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Report

# Of this process's environment: where packages and a Rust compiler come from.
KEPT = ("PATH", "RUSTC", "LANG", "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER")
TEST = "test_NAME.py"
LANGUAGES = (
    ("Python", "python", "main.py"),
    ("Rust", "rust", "src/lib.rs"),
    ("TypeScript", "js", "main.ts"),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Walk a new user's first way, in a clean virtual environment and home, by the clock."""

    port: int = options.count("--port", 17743, "For the server.")


class User:
    """A user of a clean machine: a new home, so no caches, and a folder."""

    def __init__(self, folder: Path, report: Report, progress: Progress) -> None:
        self.folder = folder
        self._report = report
        self._progress = progress
        home = folder / "home"
        home.mkdir()
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        npm = Path.home() / ".npmrc"
        if npm.is_file():
            pip["NPM_CONFIG_USERCONFIG"] = str(npm)
        rust = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
        self._environment = {**kept, **pip, "RUSTUP_HOME": rust, "HOME": str(home)}
        # As after `. .venv/bin/activate`.
        path = [str(folder / "pie_py/.venv/bin"), self._environment["PATH"]]
        self._environment["PATH"] = os.pathsep.join(path)

    def does(self, name: str, *commands: str, code: Path | None = None, where: str = ".") -> None:
        """Runs commands one after the other, by the clock; `code` is what he has written for it."""
        began = time.monotonic()
        for command in commands:
            done = subprocess.run(
                command,
                shell=True,
                cwd=self.folder / where,
                env=self._environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{command}\n{done.stdout}{done.stderr}")
        lines = 0 if code is None else len(code.read_text(encoding="utf-8").splitlines())
        self._tell(name, len(commands), lines, time.monotonic() - began)

    @contextmanager
    def serves(self, command: str, endpoint: str) -> Iterator[None]:
        """A server at an endpoint, from the line that says that it is ready."""
        self._environment["PIE_PY_ENDPOINT"] = endpoint
        began = time.monotonic()
        process = subprocess.Popen(
            f"exec {command} --no-http --endpoint {endpoint}",
            shell=True,
            cwd=self.folder,
            env=self._environment,
            text=True,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            if not any("ready at" in line for line in process.stderr):
                raise RuntimeError(f"{command} has ended")
            self._tell("a server that stays", 1, 0, time.monotonic() - began)
            yield
        finally:
            process.terminate()
            process.wait()

    def _tell(self, name: str, commands: int, lines: int, seconds: float) -> None:
        self._report.rows.append([name, commands, lines, round(seconds, 1)])
        self._progress(name)


def stopwatch(settings: Settings, progress: Progress) -> Report:
    """Does all of it once."""
    progress.expect(12)
    report = Report(
        "From nothing to a program that runs",
        ["", "commands", "lines of code", "seconds"],
        notes=[
            "Lines are those of the program or test, as `pie-py new` writes them.",
            "Python, Git, Node.js and a Rust compiler for Wasm are there before.",
        ],
    )
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        _walk(User(Path(name), report, progress), f"tcp://127.0.0.1:{settings.port}")
    return report


def _walk(user: User, endpoint: str) -> None:
    environment, install, first = _block("README.md", "-m venv").split(" && ")
    clone = _block("docs/index.md", "git clone").partition(" && ")[0]
    user.does("clone", clone.replace("…", f"-q {ROOT}"))
    user.does("install", environment, install, where="pie_py")
    user.does("first answer", first, where="pie_py")
    for language, short, source in LANGUAGES:
        template = f"pie_py/cli/templates/{short}"
        test, run, _, deploy = _block(f"{template}/README.md", "pie-py test").splitlines()
        user.does(
            f"own inferlet in {language}, its first answer",
            f"pie-py new {short} --lang {short}",
            f"cd {short} && {run}",
            code=ROOT / template / source,
        )
        user.does(f"a test of it, in {language}", test, code=ROOT / template / TEST, where=short)
    call = user.folder / "call.py"
    call.write_text(_block("docs/index.md", "# call.py").replace("surer", "python"))
    with user.serves(_block("README.md", "pie-py serve").partition(" #")[0].strip(), endpoint):
        deploy = deploy.replace("NAME", "python")
        user.does("deployed, and called", deploy, where="python")
        user.does("called by another process", "python call.py", code=call)


def _block(page: str, text: str) -> str:
    """The first block of a page that has a text."""
    return next(block.code.strip() for block in blocks(page) if text in block.code)


BENCHMARK = Benchmark(Settings, stopwatch)
