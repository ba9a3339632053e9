"""`pie-py run`: an inferlet from its source to its answer in one command."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from pie_py.cli import kept_servers
from pie_py.cli.arguments import PassingCommand, goal_options, with_files
from pie_py.cli.config_options import config_options
from pie_py.cli.connect import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_USAGE,
    At,
    errors_shown,
    server_options,
    told_of_builds,
)
from pie_py.cli.console import LOOK_SECONDS, say
from pie_py.cli.known_at_once import check_at_once
from pie_py.cli.pull import pull_those_of
from pie_py.cli.reached import prepare_at, started, use_running
from pie_py.cli.server_config import server_config, with_adapters
from pie_py.cli.target import Target, find_target, target_bytes
from pie_py.config.processes import STOP_SECONDS, python_command
from pie_py.config.temporary import TemporaryFolder
from pie_py.testing.script import Line, replaying

if TYPE_CHECKING:
    from pie_py.client import Client, Instance
    from pie_py.config.server_process import Tell


@click.command("run", cls=PassingCommand)
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@server_options
@config_options
@click.option("--entry", help="Which of a library inferlet's programs to run.")
@click.option("--no-log", is_flag=True, help="Do not show what the inferlet prints or logs.")
@click.option(
    "--says",
    multiple=True,
    metavar="TEXT",
    help="For tests: what the model says, in the place of one; a server is started for this run."
    " Repeatable: one answer after the other, the last again.",
)
@click.option(
    "--keep-server",
    is_flag=True,
    envvar="PIE_PY_KEEP_SERVER",
    help="Leave a server that is started running, for later runs with the same model and options;"
    " it ends after 5 idle minutes. PIE_PY_KEEP_SERVER=1 does so by default.",
)
@click.option("--watch", is_flag=True, help="Run it again when its files change, until Ctrl-C.")
@click.option(
    "--durable",
    is_flag=True,
    help="It goes on after a crash of the server, which must run; Ctrl-C lets it run.",
)
@goal_options
@click.option("--verbose", is_flag=True, help="Show the log of a server that is started for this.")
def command(
    target: str,
    args: tuple[str, ...],
    at: At,
    entry: str | None,
    no_log: bool,
    verbose: bool,
    watch: bool,
    says: tuple[str, ...],
    keep_server: bool,
    durable: bool,
    goal: dict[str, Any],
    **options: Any,
) -> None:
    """Run an inferlet and print what it answers.

    TARGET is a Python source, a folder with main.py, a WebAssembly component, a Rust crate's
    folder, a folder with inferlet.toml, the name of a library inferlet, or the name of an uploaded
    program. ARGS and options that are not listed here go to the inferlet; so does everything after
    `--`. Of ARGS, @FILE stands for the text of that file.

    A running server is used, unless a model or other server option is given; then one that
    `--keep-server` has left running with the same ones is (`pie-py status` lists them). If there
    is none, or with --says or --verbose, one is started for this run alone. What the
    inferlet prints or logs goes to standard error. Lines of standard input are messages to it, once
    it waits for one, and an empty one is the end. Ctrl-C cancels the inferlet.
    """
    found = find_target(target, entry)
    if watch and found is None:
        raise click.UsageError(f"--watch wants files, and {target} is none")
    if says and (options["models"] or options["on_demand"]):
        raise click.UsageError("--says is what a model says in a test: it takes no --model")
    reached = use_running(at.endpoint, {**options, "says": says})
    if durable and not reached:
        raise click.UsageError(
            "--durable wants a server that runs, and starts again: `pie-py serve`, without options"
            " for a server here"
        )
    with ExitStack() as stack:
        wait: Callable[[Tell], str] | None = None  # for a server that starts
        if not reached:
            alone = verbose or bool(says)
            adapters = {} if found is None else found.adapters
            kept = None if alone else kept_servers.server_key(options, adapters)
            at = At(None if kept is None else kept_servers.find(kept))
            if at.endpoint is None:
                config = server_config(endpoint=None, **options)
                if says:
                    from pie_py.config.model import ModelConfig

                    folder = stack.enter_context(TemporaryFolder())
                    settings = replaying(folder, [Line(text) for text in says])
                    models = tuple(ModelConfig(**model) for model in settings["models"])
                    config = config.model_copy(
                        update={**settings, "models": models, "data_folder": folder / "data"}
                    )
                else:
                    config = with_adapters(config, adapters)
                check_at_once(config, http=False)
                pull_those_of(config.models)
                from pie_py.config.server_process import temporary_server

                # So that the server is stopped and its folder removed.
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
                if keep_server and kept is not None:
                    wait = stack.enter_context(kept_servers.kept_server(config, kept))
                else:
                    is_python = found is not None and found.kind == "python"
                    if is_python:
                        config = config.model_copy(update={"compiler": "baseline"})
                    own = temporary_server(config, verbose=verbose, lines=not is_python)
                    server = stack.enter_context(own)
                    wait = server.wait_ready
        program = None if found is None or watch else built(found)
        if wait is not None:
            kind = None if found is None else found.kind
            at = at._replace(endpoint=started(config, kind, wait))
        with errors_shown():
            if watch and found is not None:
                given = ["--entry", entry] if entry else []
                given += ["--no-log"] if no_log else []
                for name, value in goal.items():
                    given += [f"--{name.replace('_', '-')}", str(value)]
                status = watch_target(found, at, [*given, target, "--", *args])
            else:
                if found is not None and wait is None:
                    prepare_at(at, found.kind)
                status = run_program(
                    *(at, target, program, with_files(args)),
                    logs=not no_log,
                    durable=durable,
                    goal=goal,
                )
    sys.exit(status)


def built(target: Target) -> tuple[bytes, str]:
    """The program's bytes and its name; a crate is built first."""
    from pie_py.build import BuildError
    from pie_py.build.modules import read_program
    from pie_py.cli.stream import with_debugger

    try:
        read = with_debugger if target.kind == "python" else read_program
        return target_bytes(target, read, lines=True), target.name
    except BuildError as error:
        say(f"error: {error}")
        sys.exit(EXIT_USAGE)


def run_program(
    at: At,
    name: str,
    program: tuple[bytes, str] | None,
    args: list[str],
    *,
    logs: bool = True,
    blobs: Sequence[bytes] | None = None,
    durable: bool = False,
    goal: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Uploads a program, bytes and name, if there is one, or runs that of a name; shows what it
    sends, and what it logs if `logs`; its exit status.

    What it gets as messages are the blobs, or lines of standard input by default.
    """
    from pie_py.cli.stream import cancel, has_debugger, leave, show_at
    from pie_py.client import ClientError

    async def begin(client: Client) -> Instance:
        launched = name
        with told_of_builds(at):
            if program is not None:
                launched = await client.upload(program[0], name=program[1])
            instance = await client.launch(launched, args, durable=durable, **goal)
        with suppress(ClientError):  # it has ended: its result says why
            for blob in blobs or ():
                await instance.send(blob)
        return instance

    typed = blobs is None and not (program and has_debugger(program[0]))
    return show_at(at, begin, leave if durable else cancel, logs=logs, typed=typed)


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
        if process.poll() is None:
            process.terminate()  # Python would tell a trace of an interrupt that comes at its start
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return EXIT_INTERRUPTED


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
