"""`pie-py chat`: a conversation in the terminal, with the library's program `chat`."""

from __future__ import annotations

import json
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from pie_py.cli.ask import model_option
from pie_py.cli.connect import At, errors_shown, server_options, told_of_builds
from pie_py.cli.console import alive, print_text, say
from pie_py.cli.reached import talking_server
from pie_py.cli.run import built
from pie_py.cli.target import find_target
from pie_py.config.kept_files import cache_folder

if TYPE_CHECKING:
    from pie_py.client.sync import Instance

QUOTES = '"""'
UNKNOWN = "there is no command"  # how a program's answer to one begins that it does not know
MOST_HISTORY = 1000  # lines
HELP = """\
/save FILE       write the conversation, as JSON if FILE ends so
/exit            end, as Ctrl-D does; Ctrl-C stops an answer
\"\"\"              begins and ends a message of several lines"""


@click.command("chat")
@server_options
@model_option
@click.option("--system", metavar="TEXT", default="", help="What the model is told before.")
@click.option("--temperature", type=click.FloatRange(0), metavar="T", help="0 is greedy.")
@click.option("--program", default="chat", help="Talk with your copy of the program instead.")
def command(
    at: At, model: str | None, system: str, temperature: float | None, program: str
) -> None:
    """Talk with a model; what was said stays in its KV pages from turn to turn.

    `/help` tells what else can be typed. `pie-py inferlets copy chat` copies the program that
    answers, `pie-py run chat --help` tells its options.
    """
    found = find_target(program)
    if found is None:
        raise click.BadParameter(f"there is no {program}", param_hint="--program")
    with errors_shown():
        at, name = talking_server(at, model)
        args = ["--system", system] if system else []
        args += ["--model", name] if name else []
        args += [] if temperature is None else ["--temperature", str(temperature)]
        with at.client() as client:
            name = name or client.models()[0]["name"]
            with told_of_builds(at):
                instance = client.launch(client.upload(*built(found)), args)
            _converse(instance, name)


def _converse(instance: Instance, name: str) -> None:
    """Reads what a person types and shows the answers, until its end."""
    if sys.stdin.isatty():
        say(f"{name}; /help tells what can be typed, Ctrl-D ends")
    said: list[dict[str, str]] = []
    with _history():
        while (text := _typed()) is not None:
            word, _, rest = text.partition(" ")
            if word in ("/exit", "/quit", "/bye"):
                break
            if word == "/save":
                _save(said, rest.strip())
            elif text:
                answer = _answer(instance, text)
                if word == "/help" or answer.startswith(UNKNOWN):
                    click.echo(HELP)
                if word == "/clear" or (word == "/system" and rest):
                    said.clear()
                elif not text.startswith("/"):
                    said.append({"role": "user", "content": text})
                    said.append({"role": "assistant", "content": answer.strip()})
    instance.send("")
    instance.result()


def _typed() -> str | None:
    """A message; None at the end of input. Ctrl-C drops what was typed."""
    lines: list[str] = []
    prompts = (">>> ", "... ") if sys.stdin.isatty() else ("", "")
    while True:
        try:
            lines.append(input(prompts[bool(lines)]))
        except EOFError:
            if prompts[0]:
                click.echo()
            return None
        except KeyboardInterrupt:
            lines.clear()
            click.echo()
            continue
        text = "\n".join(lines).strip()
        if not text.startswith(QUOTES):
            return text
        if len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES):
            return text.strip('"').strip()


def _answer(instance: Instance, text: str) -> str:
    """Sends a message and shows the answer as it comes; Ctrl-C stops it, a second one the chat."""
    stops = threading.Thread(target=instance.send, args=("/stop",), daemon=True)

    def stop(number: int, frame: FrameType | None) -> None:
        if stops.ident is not None:
            raise KeyboardInterrupt
        stops.start()

    before = signal.signal(signal.SIGINT, stop)
    pieces = []
    try:
        with _kept_for_later():
            with alive("reads"):
                instance.send(text)
                piece = instance.receive()
            while piece:  # an empty one is the end
                pieces.append(str(piece))
                print_text(str(piece), nl=False)
                piece = instance.receive()
        if piece is None:
            instance.result()  # raises why it has ended
    finally:
        signal.signal(signal.SIGINT, before)
    answer = "".join(pieces)
    if answer[-1:] != "\n":
        click.echo()
    if stops.ident is not None:
        say("[stopped; what was typed meanwhile stands at the prompt]")
    return answer


@contextmanager
def _kept_for_later() -> Iterator[None]:
    """Within it, typed text is not shown, nor lost by Ctrl-C: the next prompt gets it."""
    if not sys.stdin.isatty():
        yield
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    changed = [*before]
    changed[3] = before[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(file, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(file, termios.TCSANOW, before)


def _save(said: list[dict[str, str]], name: str) -> None:
    file = Path(name or "chat.md").expanduser()
    text = "\n\n".join(f"**{one['role']}**: {one['content']}" for one in said)
    try:
        file.write_text(json.dumps(said, indent=1) if file.suffix == ".json" else f"{text}\n")
    except OSError as error:
        say(f"{file} cannot be written: {error.strerror}")
    else:
        say(f"{len(said)} messages are in {file}")


@contextmanager
def _history() -> Iterator[None]:
    """Line editing, and the lines that were typed before, where a person types."""
    if not sys.stdin.isatty():
        yield
        return
    import readline  # `input` uses it from now on

    file = cache_folder() / "chat_history"
    with suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(MOST_HISTORY)
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)
