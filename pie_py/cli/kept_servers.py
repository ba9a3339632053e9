"""Servers that `pie-py run --keep-server` leaves behind, and `pie-py servers` and `stop`.

Each has a folder `KEY/NAME` in one that its user alone may enter: `door` is its socket, `log` its
log, and `server.json` is there once it serves. KEY stands for what it was started with, so that a
run finds only a server that is what it would start itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pie_py import __version__
from pie_py.cli.connect import json_option
from pie_py.cli.console import say, table
from pie_py.config.endpoint import answers, parse_endpoint

if TYPE_CHECKING:
    from pie_py.config.server import ServerConfig

IDLE_SECONDS = 300.0
END_SECONDS = 15.0  # for a server that was told to end
COLUMNS = {"models": "MODELS", "pid": "PID", "created_ns": "STARTED", "endpoint": "ENDPOINT"}
# Of the environment: what servers read, but for what says which of them a client uses.
_READ = ("PIE_PY_", "OMP_", "CUDA_", "HF_", "XDG_", "PYTHON")
_CLIENT = ("PIE_PY_ENDPOINT", "PIE_PY_KEY", "PIE_PY_RELAY", "PIE_PY_KEEP_SERVER")


def server_key(options: dict[str, Any]) -> str:
    """Stands for all that makes a server what it is: two that differ in it are two servers.

    Args:
        options: of `config_options`.
    """
    given = {name: value for name, value in options.items() if value not in (None, (), "")}
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_READ) and name not in _CLIENT
    }
    facts: list[Any] = [__version__, __file__, sorted(environment.items())]
    facts.append([_identity(source) for source in given.pop("models", ())])
    if "file" in given:
        facts.append(_identity(given["file"]))
    if given.keys() & {"file", "adapters", "mcp_servers"}:  # they may name files and commands
        facts += [os.getcwd(), os.environ.get("PATH")]
    facts.append(sorted(given.items()))
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:12]


def find(key: str) -> str | None:
    """The endpoint of the server that was started with this, if it still serves."""
    with suppress(click.ClickException, OSError):  # of another user's folder: a run needs none
        return next((found["endpoint"] for found in _running(_folder() / key)), None)
    return None


@contextmanager
def kept_server(config: ServerConfig, key: str) -> Iterator[Callable[[], str]]:
    """Starts a server that stays, unless another run has; gives what waits for it.

    That returns the endpoint, and raises `ServerFailed` if it does not start. A server that has not
    been waited for is ended.
    """
    from pie_py.build.folders import locked
    from pie_py.config.server_process import ServerProcess, private
    from pie_py.config.whole_files import write_whole

    place = _folder() / key
    place.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as lock:  # until it serves
        lock.enter_context(locked(place))
        if (found := next(_running(place), None)) is not None:  # another run was faster
            lock.close()
            yield lambda: str(found["endpoint"])
            return
        for ended in place.iterdir():
            shutil.rmtree(ended, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=place))
        idle = {"idle_seconds": config.idle_seconds or IDLE_SECONDS}
        config = private(config.model_copy(update=idle), folder)
        server = ServerProcess(config, folder / "log", stays=True)
        is_ready = False

        def wait() -> str:
            nonlocal is_ready
            endpoint = server.wait_ready()
            facts = {
                "models": [model.name or Path(model.source).name for model in config.models],
                "pid": server.pid,
                "created_ns": time.time_ns(),
                "endpoint": endpoint,
            }
            write_whole(folder / "server.json", json.dumps(facts).encode())
            is_ready = True
            lock.close()
            return endpoint

        try:
            yield wait
        finally:
            if not is_ready:
                server.kill()
                shutil.rmtree(folder, ignore_errors=True)


@click.command("servers")
@json_option
def servers(as_json: bool) -> None:
    """List the servers that `pie-py run --keep-server` has left running."""
    table(list(_running(_folder(), "*/")), COLUMNS, as_json)


@click.command("stop")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
def stop(models: tuple[str, ...]) -> None:
    """End the servers that `pie-py run --keep-server` has left: all, or those with a MODEL."""
    wanted = [s for s in _running(_folder(), "*/") if not models or {*models} & {*s["models"]}]
    if not wanted:
        say("no such server runs")
    for server in wanted:
        os.kill(server["pid"], signal.SIGTERM)
    end = time.monotonic() + END_SECONDS
    for server in wanted:
        while _serves(server) and time.monotonic() < end:
            time.sleep(0.05)
        say(f"{' '.join(server['models'])} {'does not end' if _serves(server) else 'has ended'}")


def _folder() -> Path:
    """Raises `click.ClickException` if another user may look into it, or has made it."""
    path = Path(tempfile.gettempdir(), f"pie-py-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    facts = path.lstat()
    private = stat.S_ISDIR(facts.st_mode) and not facts.st_mode & 0o077
    if not private or facts.st_uid != os.getuid():
        raise click.ClickException(
            f"{path} must be a folder that you alone may enter: remove it, or set TMPDIR"
        )
    return path


def _running(folder: Path, within: str = "") -> Iterator[dict[str, Any]]:
    """Servers that serve, from their files."""
    for file in sorted(folder.glob(f"{within}*/server.json")):
        try:
            found = json.loads(file.read_bytes())
        except (OSError, ValueError):  # it goes just now
            continue
        if _serves(found):
            yield found


def _serves(server: dict[str, Any]) -> bool:
    # No other process listens there, so that its number has not passed to another.
    return answers(parse_endpoint(server["endpoint"]))


def _identity(source: str | Path) -> list[Any]:
    """A file or folder as it is now; another name as it is."""
    path = Path(source).expanduser()
    if not path.exists():
        return [str(source)]
    facts = path.stat()
    return [str(path.resolve()), facts.st_mtime_ns, facts.st_size]
