"""The control process, or the gateway, as a child of this one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pie_py.config.processes import Child
from pie_py.config.temporary import TemporaryFolder

if TYPE_CHECKING:
    from pie_py.config.server import ServerConfig


Tell: TypeAlias = Callable[[str], object]


class ServerFailed(Exception):
    """The server did not start; the text is its reason."""


class ServerProcess(Child):
    """A process of the server."""

    def __init__(
        self,
        config: ServerConfig,
        log_file: Path | None = None,
        module: str = "pie_control",
        *,
        stays: bool = False,
    ) -> None:
        """Starts it: the control process, `pie_gateway`, or what starts both. Its log goes to
        standard error by default; it runs on after the end of this process if it `stays`. Raises
        `OSError` if it cannot be started.
        """
        options = ["--config", config.model_dump_json(), *([] if stays else ["--with-parent"])]
        super().__init__(module, *options, log=log_file)
        self.report: dict[str, Any] = {}  # of its being ready
        self._module = module
        self._log_file = log_file

    def wait_ready(self, tell: Tell = lambda text: None) -> str:
        """Waits until it serves and returns its endpoint, a URL of the gateway. `tell` gets, for a
        person, what is done that takes long. Raises `ServerFailed` if it does not start.
        """
        report: dict[str, Any] = {}
        try:
            while not report.keys() & {"error", "endpoint"}:  # policies may print as well
                report = self.next_line() or {}
                if "doing" in report:
                    tell(report["doing"])
        except EOFError:
            raise ServerFailed(self._last_words()) from None
        if "error" in report:
            raise ServerFailed(report["error"])
        self.report = report
        endpoint: str = report["endpoint"]
        return endpoint

    def stop_on_signals(self) -> None:
        """From now on Ctrl-C and SIGTERM stop the child, and so end `wait`."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: self.terminate())

    def _last_words(self) -> str:
        if (status := self.wait()) == 0:
            return "it was stopped before it was ready"
        text = f"{self._module} ended with status {status} before it was ready"
        if self._log_file is not None:
            lines = self._log_file.read_text(errors="replace").strip().splitlines()
            text += "".join(f"\n    {line}" for line in lines[-15:])
        return text


@contextmanager
def temporary_server(
    config: ServerConfig, *, verbose: bool = False, lines: bool = True
) -> Iterator[ServerProcess]:
    """A server on a socket of its own, which ends with the context; it may not be ready yet. If
    `verbose`, its log goes to standard error, and is not cut down to warnings. See `private`.
    """
    with TemporaryFolder() as folder:
        log = None if verbose else folder / "log"
        with ServerProcess(private(config, folder, verbose=verbose, lines=lines), log) as server:
            yield server


def private(
    config: ServerConfig, folder: Path, *, verbose: bool = False, lines: bool = True
) -> ServerConfig:
    """The configuration of a server that listens in a folder which its user alone may enter: its
    programs are those of the user who starts it, so that traps may tell source `lines`. Without,
    it shares the Python runtime's code with all other servers: Python's own traces have lines.
    """
    changes: dict[str, Any] = {"endpoint": f"ipc://{folder}/door", "source_lines": lines}
    if not verbose:
        changes["log"] = config.log.model_copy(update={"level": "warning"})
    return config.model_copy(update=changes)
