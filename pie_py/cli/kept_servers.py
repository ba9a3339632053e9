"""Servers that run on behind a command: `pie-py status` and `stop`.

`pie-py run --keep-server`, `ask` and `chat` leave one that ends when it is idle, `pie-py serve
--detach` one that does not; `pie-py serve` itself is noted, too. Each has a folder `KEY/NAME` in
one that its user alone may enter: `log` is its log, and `server.json` has its facts, without an
endpoint until it serves; one that ends when idle has its socket there, `door`, and KEY stands for
what it was started with, so that a run finds only a server that is what it would start itself.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import platformdirs

from pie_py import __version__
from pie_py.cli.connect import At, asked, json_option, server_options
from pie_py.cli.console import alive, columns, say, table
from pie_py.cli.names import find_name
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.config.temporary import temporary_place

if TYPE_CHECKING:
    from pie_py.client.sync import Client
    from pie_py.config.server import ServerConfig
    from pie_py.config.server_process import Tell

WHEN_IDLE = "when it is idle"
DETACHED = "detached"  # the KEY of those that stay
IN_FRONT = "when its terminal ends it"  # that of `serve` itself
COLUMNS = columns("models ends pid created_ns=STARTED endpoint http")
# Of the environment: what servers read, but for what says which of them a client uses.
_READ = ("PIE_PY_", "OMP_", "CUDA_", "HF_", "XDG_", "PYTHON")
_CLIENT = ("PIE_PY_ENDPOINT", "PIE_PY_KEY", "PIE_PY_KEEP_SERVER")


def server_key(options: Mapping[str, Any], adapters: Mapping[str, Any] = {}) -> str:
    """Stands for all that makes a server what it is, with the adapters of a program, and for the
    files of its models as they are: two that differ in it are two servers.
    """
    given = {name: value for name, value in options.items() if value not in (None, (), "")}
    environment = {
        name.upper(): value  # settings are read in any case
        for name, value in os.environ.items()
        if name.upper().startswith(_READ) and name.upper() not in _CLIENT
    }
    named = [given.get(option, ()) for option in ("models", "on_demand", "file")]
    named.append([text.partition("=")[2] for text in given.get("adapters", ())])
    with suppress(OSError, ValueError):  # its own error comes when it is read
        named.append(json.loads(environment.get("PIE_PY_MODELS", "[]")))
        if "file" in given:
            text = Path(given["file"]).read_text(encoding="utf-8-sig")
            named.append(tomllib.loads(text).get("models", ()))
    facts: list[Any] = [__version__, __file__, _home(), sorted(environment.items())]
    facts += [sorted(given.items()), adapters, _as_they_are([*named, adapters])]
    if given.keys() & {"file", "adapters", "mcp_servers"}:  # they may name files and commands
        facts += [os.getcwd(), os.environ.get("PATH")]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:12]


def find(key: str) -> str | None:
    """The endpoint of the server that was started with this, if it still serves."""
    with suppress(click.ClickException, OSError):  # of another user's folder: a run needs none
        return next((found["endpoint"] for found in _running(_folder() / key)), None)
    return None


def find_serving(model: str | None) -> tuple[str, str] | None:
    """The endpoint of a server that ends when idle and serves a model, and the model's name; of any
    such server, and "", for None.
    """
    with suppress(click.ClickException, OSError):
        for server in _running(_folder(), "*/"):
            name = "" if model is None else find_name(model, server["models"])
            if name is not None and server["ends"] == WHEN_IDLE:
                return server["endpoint"], name
    return None


def detach(config: ServerConfig, tell: Tell) -> dict[str, Any]:
    """Starts a server that stays; its facts. Raises `ServerFailed`: it does not start."""
    from pie_py.config.server_process import ServerProcess

    folder = Path(tempfile.mkdtemp(dir=_place(DETACHED)))
    server = ServerProcess(config, folder / "log", "pie_py.cli.serve", stays=True)
    ends = "when it is stopped"
    try:
        _note(folder, config, server.pid, ends)
        server.wait_ready(tell)
    except BaseException:
        server.terminate()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _note(folder, config, server.pid, ends, server.report)


def note_in_front(config: ServerConfig, report: dict[str, Any]) -> None:
    """Notes this process, if it reports that it serves, until its end, where that can be."""
    if "ready" in report:
        with suppress(click.ClickException, OSError):
            folder = Path(tempfile.mkdtemp(dir=_place("in-front")))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            _note(folder, config, os.getpid(), IN_FRONT, report)


def _place(key: str) -> Path:
    place = _folder() / key
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def _note(
    folder: Path, config: ServerConfig, pid: int, ends: str, report: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Writes down a server, which serves if it has reported so; its facts."""
    import psutil

    from pie_py.config.whole_files import write_whole

    facts = {
        "models": [model.name or Path(model.source).name for model in config.models],
        "ends": ends,
        "pid": pid,
        "began": psutil.Process(pid).create_time(),
        "created_ns": time.time_ns(),
        "endpoint": report.get("endpoint"),
        "http": report.get("http"),
        "log": str(folder / "log"),
        "home": _home(),
    }
    write_whole(folder / "server.json", json.dumps(facts).encode())
    return facts


def _home() -> str:
    """By what servers are told from those of another HOME, which have other data folders."""
    return f"{Path.home()} {platformdirs.user_data_dir('pie_py')}"


@contextmanager
def kept_server(
    config: ServerConfig, key: str, *, lines: bool = True
) -> Iterator[Callable[[Tell], str]]:
    """Starts a server that stays, unless another run has; gives what waits for it. For `lines` see
    `private`.

    That returns the endpoint, and raises `ServerFailed` if it does not start. A server that has not
    been waited for is ended.
    """
    from pie_py.config.server_process import ServerProcess, private
    from pie_py.config.whole_files import locked

    place = _place(key)
    with ExitStack() as lock:  # until it serves
        lock.enter_context(locked(place))
        if (found := next(_running(place), None)) is not None:  # another run was faster
            lock.close()
            yield lambda tell: str(found["endpoint"])
            return
        for left in _noted(place):  # its run was killed while it started
            os.kill(left["pid"], signal.SIGKILL)
        for ended in place.iterdir():
            shutil.rmtree(ended, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=place))
        idle = {"idle_seconds": config.idle_seconds or 300.0}
        config = private(config.model_copy(update=idle), folder, lines=lines)
        server = ServerProcess(config, folder / "log", stays=True)
        is_ready = False

        def wait(tell: Tell) -> str:
            nonlocal is_ready
            endpoint = server.wait_ready(tell)
            _note(folder, config, server.pid, WHEN_IDLE, server.report)
            is_ready = True
            lock.close()
            return endpoint

        try:
            _note(folder, config, server.pid, WHEN_IDLE)
            yield wait
        finally:
            if not is_ready:
                server.kill()
                shutil.rmtree(folder, ignore_errors=True)


@click.command("status")
@server_options
@json_option
def status(at: At, as_json: bool) -> None:
    """List the servers that run: the one at the endpoint, and those that run on behind a command.

    `pie-py models` and `ps` tell what a server serves and runs.
    """
    found = list(_noted(_folder(), "*/"))
    facts = asked(at, _facts)
    if facts and facts["endpoint"] not in (server["endpoint"] for server in found):
        found.insert(0, facts)
    if not found and not as_json:
        say("no server runs: `pie-py serve` starts one, `pie-py serve --detach` one that stays")
        return
    table(found, COLUMNS, as_json)


def _facts(client: Client) -> dict[str, Any]:
    facts = client.server_info()
    return {**facts, "created_ns": time.time_ns() - int(facts["uptime"] * 1e9)}


@click.command("stop")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
def stop(models: tuple[str, ...]) -> None:
    """End the servers that run on behind a command: all, or those with a MODEL."""
    wanted = [
        server
        for server in _noted(_folder(), "*/")
        if server["ends"] != IN_FRONT
        if not models or any(find_name(model, server["models"]) for model in models)
    ]
    if not wanted:
        say("no such server runs; Ctrl-C ends one that runs in a terminal")
    for server in wanted:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(server["pid"], signal.SIGTERM)
    end = time.monotonic() + 30.0
    for server in wanted:
        with alive():
            while _lives(server) and time.monotonic() < end:
                time.sleep(0.05)
        say(f"{' '.join(server['models'])} {'does not end' if _lives(server) else 'has ended'}")


def _folder() -> Path:
    """Raises `click.ClickException` if another user may look into it, or has made it."""
    path = temporary_place() / f"pie-py-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    facts = path.lstat()
    private = stat.S_ISDIR(facts.st_mode) and not facts.st_mode & 0o077
    if not private or facts.st_uid != os.getuid():
        raise click.ClickException(
            f"{path} must be a folder that you alone may enter: remove it, or set TMPDIR"
        )
    return path


def _running(folder: Path, within: str = "") -> Iterator[dict[str, Any]]:
    """Those that serve by themselves."""
    for found in _noted(folder, within):
        if found["endpoint"] and found["ends"] != IN_FRONT:
            yield found


def _noted(folder: Path, within: str = "") -> Iterator[dict[str, Any]]:
    """Servers of this HOME that serve, or start, from their files."""
    for file in sorted(folder.glob(f"{within}*/server.json")):
        try:
            found = json.loads(file.read_bytes())
        except (OSError, ValueError):  # it goes just now
            continue
        if found.get("home", _home()) != _home() or not _lives(found):
            continue
        if found["endpoint"] is None or answers(parse_endpoint(found["endpoint"])):
            yield found


def _lives(server: dict[str, Any]) -> bool:
    """True if its process has not ended, and its number has not passed to another."""
    import psutil

    try:
        process = psutil.Process(server["pid"])
        same = process.create_time() == server["began"]
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _as_they_are(named: Any) -> list[Any]:
    """The state of the files that are named within lists and tables: of a
    folder what is in it, and of a file of weights the projectors beside it.
    """
    if isinstance(named, Mapping):
        named = list(named.values())
    if isinstance(named, list | tuple):
        return [each for inner in named for each in _as_they_are(inner)]
    if not isinstance(named, str | Path):
        return []
    path = Path(named).expanduser().resolve()
    with suppress(OSError):  # who starts the server says what is wrong
        files = path.iterdir() if path.is_dir() else (path, *path.parent.glob("*mmproj*.gguf"))
        facts = [(file, file.stat()) for file in sorted(files)] if path.exists() else []
        return [(str(file), of.st_mtime_ns, of.st_size) for file, of in facts]
    return [str(path)]
