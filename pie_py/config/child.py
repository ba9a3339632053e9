"""The child's side of a process of ours: its options, its reports, its end with its parent.

`pie_py.config.processes` has the parent's side.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pie_py.config.platform import c_function

if TYPE_CHECKING:
    from pie_py.config.server import ServerConfig

LEAVE_SECONDS = 5.0  # for an event loop to end in order when the parent has gone
MOST_FILES = 16_384
PR_SET_PDEATHSIG = 1  # of prctl(2)


def read_options(module: str) -> tuple[ServerConfig, bool]:
    """The configuration, and whether to stop with the parent; sets up the log."""
    given, with_parent = read_arguments(module)
    return configured(given), with_parent


def read_arguments(module: str) -> tuple[dict[str, Any], bool]:
    """As `read_options`; of the configuration, what is given, which is not checked."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--config", required=True, help="a ServerConfig, as JSON")
    parser.add_argument("--with-parent", action="store_true", help="exit when stdin closes")
    options = parser.parse_args()
    return json.loads(options.config), options.with_parent


def configured(given: dict[str, Any]) -> ServerConfig:
    """The configuration of these fields; sets up the log."""
    # They take long to import: the worker needs neither, and is started before by its parent.
    from pie_py.config.logs import set_up_logs
    from pie_py.config.server import ServerConfig

    config = ServerConfig.model_validate(given)
    set_up_logs(config.log)
    return config


def allow_open_files(most: int = MOST_FILES) -> None:
    """Has this process open as many files as it needs, if the system lets it.

    Connections are files, too. A system's usual limit is 1 024, and a stranger without a key can
    open as many connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def report(message: dict[str, object]) -> None:
    """Writes a line to the parent."""
    with suppress(OSError):  # a log on a full disk; a parent that has gone is noticed elsewhere
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


def report_ready(endpoint: str) -> None:
    """Reports that the process serves, and where."""
    report({"ready": True, "endpoint": endpoint})


def first_error(error: BaseException) -> BaseException:
    """The first error in groups of tasks, which may be within others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def report_error(reason: str) -> None:
    """Reports why the process cannot serve."""
    report({"error": reason})


def exit_with_parent(seconds: float = 0.0, number: int = signal.SIGKILL) -> None:
    """Ends this process by a signal once its standard input ends, even if its event loop does not
    turn: one that sees that as well has so many seconds to end in order.

    A process that was stopped is continued by the kernel when its parent dies, so that it ends,
    too.
    """
    if (prctl := c_function("prctl")) is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGCONT)

    def watch() -> None:
        poll = select.poll()
        poll.register(sys.stdin.fileno(), select.POLLIN)
        poll.poll()
        time.sleep(seconds)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, name="parent", daemon=True).start()
