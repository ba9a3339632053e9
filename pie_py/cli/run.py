"""`pie-py run`: an inferlet from its source to its answer in one command."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from pie_py.cli.arguments import with_files
from pie_py.cli.config_options import config_options
from pie_py.cli.connect import (
    EXIT_FAILED,
    EXIT_TERMINATED,
    EXIT_USAGE,
    errors_shown,
    server_options,
)
from pie_py.cli.console import progress, say
from pie_py.cli.server_config import server_config
from pie_py.cli.target import BadTarget, Target, find_target, program_bytes


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@server_options
@config_options
@click.option("--entry", help="Which of a library inferlet's programs to run.")
@click.option("--no-log", is_flag=True, help="Do not show what the inferlet prints or logs.")
@click.option("--verbose", is_flag=True, help="Show the log of a server that is started for this.")
def command(
    target: str,
    args: tuple[str, ...],
    endpoint: str | None,
    key: str | None,
    entry: str | None,
    no_log: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Run an inferlet and print what it answers.

    TARGET is a Python source, a folder with main.py, a WebAssembly component, a Rust crate's
    folder, a folder with inferlet.toml, the name of a library inferlet, or the name of an uploaded
    program. ARGS and options that are not listed here go to the inferlet; so does everything after
    `--`. Of ARGS, @FILE stands for the text of that file.

    A running server is used, unless a model or other server option is given; if none runs, one is
    started for this run alone. What the inferlet prints or logs goes to standard error. Ctrl-C
    cancels the inferlet.
    """
    try:
        found = find_target(target, entry)
    except BadTarget as error:
        raise click.BadParameter(str(error), param_hint="TARGET") from None
    with ExitStack() as stack:
        program = stack.enter_context(_built(found)) if found is not None else None
        if not _use_running(endpoint, options):
            config = server_config(endpoint=None, **options)
            endpoint, key = stack.enter_context(_temporary_server(config, found, verbose)), None
        with errors_shown():
            status = _run(endpoint, key, target, program, with_files(args), logs=not no_log)
    sys.exit(status)


def _use_running(endpoint: str | None, options: dict[str, Any]) -> bool:
    """Whether to use a running server rather than start one."""
    from pie_py.client.client import server_endpoint
    from pie_py.config.endpoint import DEFAULT_ENDPOINT, BadEndpoint, answers, parse_endpoint

    wanted = [name for name, value in options.items() if value not in (None, (), "")]
    if endpoint is not None:
        if wanted:
            raise click.UsageError(
                "--endpoint names a running server; a model and other server options are for"
                " `pie-py serve`, or for a run without --endpoint"
            )
        try:
            server_endpoint(endpoint)
        except BadEndpoint as error:
            raise click.UsageError(str(error)) from None
        return True
    return not wanted and answers(parse_endpoint(DEFAULT_ENDPOINT))


@contextmanager
def _built(target: Target) -> Iterator[tuple[bytes, str]]:
    """The program's bytes and its name; a crate is built first."""
    if target.kind != "crate":
        try:
            data = program_bytes(target.path)
        except BadTarget as error:
            raise click.BadParameter(str(error), param_hint="TARGET") from None
        yield data, target.name
        return
    from pie_py.build.errors import BuildError
    from pie_py.build.rust import build_crate

    with tempfile.TemporaryDirectory() as folder, progress(f"building {target.path}"):
        try:
            built = build_crate(target.path, Path(folder) / f"{target.name}.wasm").read_bytes()
        except BuildError as error:
            say(f"error: {error}")
            sys.exit(EXIT_USAGE)
    yield built, target.name


@contextmanager
def _temporary_server(config: Any, target: Target | None, verbose: bool) -> Iterator[str]:
    """A server for one run, on an endpoint of its own."""
    from pie_py.client.server_process import ServerFailed, ServerProcess

    with tempfile.TemporaryDirectory(prefix="pie-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if not verbose:
            quiet = config.log.model_copy(update={"level": "warning"})
            config = config.model_copy(update={"log": quiet})
        config = config.model_copy(update={"endpoint": f"ipc://{folder}/door"})
        log = None if verbose else folder / "log"
        signal.signal(
            signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED)
        )  # so that it is cleaned up
        with ServerProcess(config, log) as server:
            models = ", ".join(model.name or model.source for model in config.models)
            if target is not None and target.kind == "python":
                _prepare_python(config.cache_folder)
            try:
                with progress(f"starting a server with {models}"):
                    endpoint = server.wait_ready()
            except ServerFailed as error:
                say(f"error: the server did not start: {error}")
                sys.exit(EXIT_FAILED)
            yield endpoint


def _prepare_python(cache_folder: Path) -> None:
    """Builds a missing Python runtime, showing progress; the server would build it silently."""
    from pie_py.build.errors import BuildError
    from pie_py.build.python import runtime_component

    try:
        runtime_component(cache_folder, say)
    except BuildError as error:
        say(f"error: {error}")
        sys.exit(EXIT_FAILED)


def _run(
    endpoint: str | None,
    key: str | None,
    name: str,
    program: tuple[bytes, str] | None,
    args: list[str],
    *,
    logs: bool,
) -> int:
    import anyio

    from pie_py.cli.stream import cancel, show
    from pie_py.client import Client

    async def main() -> int:
        async with Client(endpoint, key) as client:
            launched = name
            if program is not None:
                launched = await client.upload(program[0], name=program[1])
            instance = await client.launch(launched, args)
            return await show(instance, cancel, logs=logs)

    return anyio.run(main)
