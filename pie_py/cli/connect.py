"""Options and errors that all commands that talk to a server share."""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click

from pie_py.cli.console import LOOK_SECONDS, alive, say
from pie_py.config.printable import printable

if TYPE_CHECKING:
    from pie_py.client.sync import Client

Function = TypeVar("Function", bound=Callable[..., Any])
Answer = TypeVar("Answer")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class At(NamedTuple):
    """The server that a command talks to, and how: what `Client` takes."""

    endpoint: str | None = None
    key: str | None = None

    def client(self) -> Client:
        """A plain client, not connected yet."""
        from pie_py.client import sync

        return sync.Client(self.endpoint, self.key)


def fail(text: object) -> NoReturn:
    """Ends this process as a command that has failed, and says why."""
    say(f"error: {text}")
    sys.exit(EXIT_FAILED)


def options(*added: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """A decorator that adds options; `--help` lists the last one first."""
    return lambda function: functools.reduce(lambda one, add: add(one), added, function)


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def repeatable(*names: str, help: str, **how: Any) -> Callable[[Any], Any]:  # noqa: A002  click's
    """An option that may be given several times: its names, the parameter's, and its metavar."""
    *known, metavar = names
    text = f"{help} Repeatable."
    return click.option(*known, multiple=True, metavar=metavar, help=text, **how)


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds `--endpoint` and `--key`, and passes them as `at`."""

    @options(
        click.option(
            "--key",
            type=click.Path(exists=True, dir_okay=False),
            help="Key file, for a server that wants one; PIE_PY_KEY by default.",
        ),
        click.option(
            "--endpoint",
            metavar="ENDPOINT",
            envvar="PIE_PY_ENDPOINT",
            help="The server's tcp://HOST:PORT or ipc://PATH.  [default: tcp://127.0.0.1:7743]",
        ),
    )
    @functools.wraps(function)
    def wrapped(*args: Any, endpoint: str | None, key: str | None, **options: Any) -> None:
        function(*args, at=At(endpoint, key), **options)

    return wrapped


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


@contextmanager
def errors_shown() -> Iterator[None]:
    """Turns the client's errors, and Ctrl-C, into a line on standard error and the exit status."""
    from pie_py.client import ClientError, UsageError

    try:
        yield
    except UsageError as error:
        say(str(error))
        sys.exit(EXIT_USAGE)
    except ClientError as error:
        fail(error)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # Commands look into answers, which a server of another version, or none, may give.
        where = traceback.extract_tb(error.__traceback__)[-1]
        found = f"{type(error).__name__}: {printable(error)} ({where.name}:{where.lineno})"
        fail(f"this pie-py cannot read what the server answers ({found})")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def asked(at: At, ask: Callable[[Client], Answer]) -> Answer | None:
    """A server's answer; None if there is none and none was named."""
    from pie_py.client import ServerUnreachable

    with errors_shown():
        try:
            with at.client() as client:
                return ask(client)
        except ServerUnreachable:
            if at.endpoint is not None:
                raise
    return None


def with_client(function: Callable[..., None]) -> Callable[..., None]:
    """Passes a connected sync client first, made from the options of the server."""

    @server_options
    @functools.wraps(function)
    def wrapped(at: At, **options: Any) -> None:
        with errors_shown(), at.client() as client:
            function(client, **options)

    return wrapped


@contextmanager
def told_of_builds(at: At) -> Iterator[None]:
    """Within it, if it takes long, the user is told what the server does that is done once."""
    from pie_py.client import ClientError

    ended = threading.Event()

    def look() -> None:
        if ended.wait(1.0):
            return
        told = set()
        with suppress(ClientError), at.client() as client:
            while not ended.wait(LOOK_SECONDS):
                for text in client.server_info().get("doing", ()):
                    if text not in told:
                        say(f"the server is {text}")
                        told.add(text)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        with alive():
            yield
    finally:
        ended.set()
        looking.join()
