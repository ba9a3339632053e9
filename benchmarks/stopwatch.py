"""`stopwatch`: how long a new user takes, from a clone to a program that another process calls."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Report

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "pie_py/cli/templates"
# Of this process's environment: where packages and a Rust compiler come from.
KEPT = ("PATH", "RUSTC", "LANG", "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER")
LANGUAGES = (
    ("Python", "python", "mine", "main.py"),
    ("Rust", "rust", "quick", "src/lib.rs"),
    ("TypeScript", "js", "typed", "main.ts"),
)
CALL = """\
from pie_py.client.sync import Client

with Client("{endpoint}") as client:
    print(client.launch("mine", ["--prompt", "Once"]).result())
"""


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
    def serves(self, command: str) -> Iterator[None]:
        """A server, from the line that says that it is ready."""
        began = time.monotonic()
        process = subprocess.Popen(
            command.split(),
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
    progress.expect(10)
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
    user.does(
        "clone and install",
        f"git clone -q {ROOT} pie_py",
        "python3 -m venv .venv",
        ".venv/bin/pip install -q -e pie_py",
    )
    user.does("first answer", '.venv/bin/pie-py run text_completion --prompt "The capital of"')
    for language, short, name, code in LANGUAGES:
        template = TEMPLATES / short
        user.does(
            f"own inferlet in {language}, its first answer",
            f".venv/bin/pie-py new {name} --lang {short}",
            f'.venv/bin/pie-py run {name} --prompt "Once upon a time"',
            code=template / code,
        )
        test = template / "test_NAME.py"
        user.does(
            f"a test of it, in {language}", "../.venv/bin/pie-py test -q", code=test, where=name
        )
    call = user.folder / "call.py"
    call.write_text(CALL.format(endpoint=endpoint))
    with user.serves(f".venv/bin/pie-py serve --no-http --endpoint {endpoint}"):
        user.does(
            "deployed, and called by another process",
            f".venv/bin/pie-py upload mine --endpoint {endpoint}",
            ".venv/bin/python call.py",
            code=call,
        )


BENCHMARK = Benchmark(Settings, stopwatch)
