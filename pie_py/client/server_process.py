"""The control process, or the gateway, as a child of this one: of the command line, or a
benchmark.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from pie_py.client.errors import ServerUnreachable
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.config.processes import python_command

if TYPE_CHECKING:
    from pie_py.config.server import ServerConfig


log = logging.getLogger(__name__)


class ServerFailed(Exception):
    """The server did not start; the text is its reason."""


class ServerProcess:
    """Starts a process of the server, which ends with this one whatever happens to it."""

    def __init__(
        self,
        config: ServerConfig,
        log_file: Path | None = None,
        module: str = "pie_control",
    ) -> None:
        """Starts it.

        Args:
            config: of the server.
            log_file: of its log; standard error by default.
            module: the control process, or `pie_gateway`.
        """
        self._log_file = log_file
        self._module = module
        log = None if log_file is None else log_file.open("wb")
        try:
            self._process = subprocess.Popen(
                python_command("-m", module, "--with-parent", "--config", config.model_dump_json()),
                stdin=subprocess.PIPE,  # its end tells the child that this process has gone
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        finally:
            if log is not None:
                log.close()

    def wait_ready(self) -> str:
        """Waits until it serves and returns its endpoint, a URL of the gateway.

        Raises:
            ServerFailed: if it does not start.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerFailed(self._last_words())
        message = json.loads(line)
        if "error" in message:
            raise ServerFailed(message["error"])
        endpoint: str = message["endpoint"]
        return endpoint

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait(self) -> int:
        """Waits for its end and returns its exit status."""
        return self._process.wait()

    def stop_on_signals(self) -> None:
        """From now on Ctrl-C and SIGTERM stop the child, and so end `wait`."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._process.terminate()

        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)

    def stop(self) -> None:
        """Stops it, at the latest after ten seconds."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _last_words(self) -> str:
        status = self._process.wait()
        text = f"{self._module} ended with status {status} before it was ready"
        if self._log_file is not None:
            lines = self._log_file.read_text(errors="replace").strip().splitlines()
            text += "".join(f"\n    {line}" for line in lines[-15:])
        return text


@contextmanager
def temporary_server(config: ServerConfig, *, verbose: bool = False) -> Iterator[ServerProcess]:
    """A server on a socket of its own, which ends with the context; it may not be ready yet.

    Args:
        config: of the server; its endpoint does not matter.
        verbose: its log goes to standard error, and is not cut down to warnings.
    """
    with tempfile.TemporaryDirectory(prefix="pie-", ignore_cleanup_errors=True) as name:
        # Its programs are those of the user who starts it.
        changes: dict[str, Any] = {"endpoint": f"ipc://{name}/door", "source_lines": True}
        if not verbose:
            changes["log"] = config.log.model_copy(update={"level": "warning"})
        log = None if verbose else Path(name, "log")
        with ServerProcess(config.model_copy(update=changes), log) as server:
            yield server


@asynccontextmanager
async def local_endpoint(endpoint: str, settings: dict[str, Any]) -> AsyncIterator[str]:
    """The endpoint, if a server answers there and no settings are given; else that of a new one.

    Raises:
        ServerUnreachable: it does not start, or the settings are wrong.
    """
    run = anyio.to_thread.run_sync
    if not settings and await run(answers, parse_endpoint(endpoint)):
        yield endpoint
        return
    if find_spec("pie_control") is None:
        raise ServerUnreachable(
            f"no server at {endpoint}, and none can be started: this is the client alone; pip"
            " install pie-py"
        )
    # These take long to import, and few need them.
    from pie_py.build.python import runtime_file
    from pie_py.config.server import ServerConfig

    try:
        config = ServerConfig(**settings)
    except ValueError as error:
        raise ServerUnreachable(str(error)) from None
    if not runtime_file(config.cache_folder).is_file():
        log.warning("The first Python program takes some 15 s: it builds its runtime, once.")
    manager = temporary_server(config)
    server = await run(manager.__enter__)
    try:
        try:
            started = await run(server.wait_ready, abandon_on_cancel=True)
        except ServerFailed as error:
            raise ServerUnreachable(f"the server did not start: {error}") from None
        yield started
    finally:
        with anyio.CancelScope(shield=True):
            await run(manager.__exit__, None, None, None)
