"""Runs a program again whenever its files change: each run is a `pie-py run` of its own."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pie_py.cli.connect import EXIT_INTERRUPTED, At
from pie_py.cli.console import LOOK_SECONDS, say
from pie_py.cli.target import Target
from pie_py.config.processes import STOP_SECONDS, python_command


def watch_target(target: Target, at: At, args: Sequence[str]) -> int:
    """Runs a target, and again at each change of its files, until Ctrl-C; the exit status."""
    command = python_command("-m", "pie_py", "run")
    for option, value in (("--endpoint", at.endpoint), ("--key", at.key)):
        command += [option, value] if value else []
    # An exception could come between starting a run and being ready to stop it; and a shell's
    # background jobs ignore Ctrl-C unless they ask for it.
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    while not interrupted.is_set():
        seen = _stamps(target)
        process = subprocess.Popen([*command, *args])
        running = True
        while not interrupted.wait(LOOK_SECONDS) and _stamps(target) == seen:
            if running and process.poll() is not None:
                running = False
                say("waiting for a change; Ctrl-C ends")
        if not interrupted.is_set():
            say(f"{target.path} has changed")
        _stop(process)
    return EXIT_INTERRUPTED


def _stop(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does; a process that was too young to notice is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _stamps(target: Target) -> dict[Path, int]:
    """When each file of a program was written; those that are gone have none."""
    from pie_py.build.javascript_modules import read_javascript
    from pie_py.build.modules import read_modules
    from pie_py.wire.modules import BadProgram

    path = target.path
    files = [path]
    if target.kind == "crate":
        files = [path / "Cargo.toml", *path.glob("src/**/*.rs")]
    elif target.kind == "python":
        root = path if path.is_dir() else path.parent
        with suppress(OSError, BadProgram):
            files = [root / name for name in read_modules(path)]
    elif target.kind == "javascript":
        with suppress(OSError, BadProgram):
            files = [path, *(path.parent / name for name in read_javascript(path))]
    found = {}
    for file in files:
        with suppress(OSError):
            found[file] = file.stat().st_mtime_ns
    return found
