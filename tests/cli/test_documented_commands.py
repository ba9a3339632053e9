"""Each command of a document is one, `pie-py` or `python -m benchmarks`: it exists, and so do its
options and its arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import main as benchmarks
from pie_py.cli import main
from pie_py.cli.arguments import PassingCommand

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "client/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "inferlets").glob("**/*.md")),
    *sorted((ROOT / "pie_py/cli/templates").glob("*/README.md")),
]
PROGRAMS = [*(ROOT / "examples").glob("*.py"), *(ROOT / "inferlets").glob("*/*.py")]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}(.*)$", re.MULTILINE)
INLINE = re.compile(r"`((?:pie-py|python -m benchmarks) [^`]+)`")
LINE = re.compile(r"^(?:Run:)?\s*(pie-py .*)$", re.MULTILINE)  # of a program's docstring
BEFORE = ("$", "sudo", "time", "nohup")
END = {"&&", "||", "|", ";", "&", ">", ">>", "<", "(", ")"}


def commands_of(shell: str) -> Iterator[list[str]]:
    """The words of each command of ours of some lines of a shell."""
    for line in shell.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # prose with an apostrophe
            continue
        while words:
            length = next((at for at, word in enumerate(words) if word in END), len(words))
            command, words = words[:length], words[length + 1 :]
            while command and ("=" in command[0] or command[0] in BEFORE):
                del command[0]
            if command and command[0].rpartition("/")[2] == "pie-py":
                yield command[1:]
            if command[:3] == ["python", "-m", "benchmarks"]:
                yield command[2:]


def documented() -> Iterator[tuple[str, list[str], bool]]:
    """Where each command stands, its words, and whether it is whole rather than named in prose."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        name = str(page.relative_to(ROOT))
        prose = FENCED.sub("", text)
        whole = [code for kind, code in FENCED.findall(text) if kind == "sh"]
        for shell in (*whole, *INDENTED.findall(prose)):
            yield from ((name, command, True) for command in commands_of(shell))
        for span in INLINE.findall(INDENTED.sub("", prose)):
            yield from ((name, command, False) for command in commands_of(" ".join(span.split())))
    for program in PROGRAMS:
        text = program.read_text(encoding="utf-8").partition('"""\n\n')[0]
        for line in LINE.findall(text):
            shell = line.partition("  ")[0]  # a remark stands behind two spaces
            yield from (
                (str(program.relative_to(ROOT)), words, True) for words in commands_of(shell)
            )


def fault(words: list[str], *, whole: bool) -> str | None:
    """What the command line would refuse of a command, as far as its text tells."""
    command: click.Command = main
    if words[:1] == ["benchmarks"]:
        command, words = benchmarks, words[1:]
    context = click.Context(command, info_name="pie-py")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None and words[0].isupper() and not whole:  # stands for any
            return None
        if found is None:
            return f"no command {words[0]!r}"
        command, words = found, words[1:]
        context = command.context_class(
            command, parent=context, info_name=command.name, **command.context_settings
        )
    if not words and not whole:
        return None
    try:
        if isinstance(command, PassingCommand):
            words = command.ordered(context, words)
        given, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.BadOptionUsage as error:  # a prose names `--option` without its value
        return str(error.message) if whole else None
    except click.UsageError as error:
        return str(error.message)
    if rest and not isinstance(command, click.Group):
        return f"unexpected {rest}"
    missing = [one.name for one in command.params if one.required and not _has(given, one)]
    return f"without {missing}" if missing and whole else None


def _has(given: dict[str, object], parameter: click.Parameter) -> bool:
    value = given.get(str(parameter.name))  # click's own mark if it is not there
    return isinstance(value, str | list | tuple) and len(value) > 0


@pytest.mark.parametrize(
    "words",
    [
        "nothing",
        "keys add ada --nothing x",
        "ps more",
        "keys nothing",
        "upload",
        "serve --model",
        "benchmarks none",
        "benchmarks compare --nothing",
    ],
)
def test_a_wrong_command_is_found(words: str) -> None:
    assert fault(words.split(), whole=True)


def test_every_documented_command_exists() -> None:
    found = list(documented())
    assert len(found) > 200
    faults = [
        f"{place}: pie-py {shlex.join(words)}: {what}"
        for place, words, whole in found
        if (what := fault(words, whole=whole))
    ]
    assert not faults, "\n".join(faults)
