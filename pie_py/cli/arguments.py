"""Arguments of inferlets, as they are written on the command line."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from pie_py.cli.connect import options

# What is meant, if there is such a command, and what users of other programs type for it.
_TYPED = {
    ("add", "load"): "register",
    ("ask",): "complete completions generate prompt query",
    ("chat",): "talk",
    ("inferlets copy", "copy"): "cp",
    ("models", "ps", "list"): "list ls",
    ("models", "status", "list"): "show",
    ("new", "add", "load"): "create init new",
    ("pull", "add"): "download install",
    ("rm", "programs rm", "remove", "unload"): "delete remove rm",
    ("send",): "message",
    ("serve --detach",): "start",
    ("status",): "servers",
    ("status", "models"): "info",
    ("--help",): "help",
}
_MEANT = {word: meant for meant, words in _TYPED.items() for word in words.split()}


class SuggestingGroup(click.Group):
    """Commands, of which the one that is meant is told where there is none of a name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Fails with what is meant."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            there = self.list_commands(ctx)
            path = f"pie-py {ctx.info_name}" if ctx.parent else "pie-py"
            known = [one for one in _MEANT.get(name, ()) if one.split()[0] in (*there, "--help")]
            near = known or get_close_matches(name, there)
            meant = " or ".join(f"`{path} {one}`" for one in near)
            hint = f"did you mean {meant}?" if near else f"`{path} --help` lists them"
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


class PassingCommand(click.Command):
    """A command whose last argument takes all that is not its own.

    Its own are words that are exactly one of its options (`-h`, `--model`, `--model=X`), and their
    values. All else goes on as it is, and so does everything after `--`: `--prompt "- oh"` asks for
    no help, though click would look for letters of options in any word that begins with `-`. A
    value that is itself one of the command's options wants `--` before. `--help` behind the first
    word that goes on does so, too.
    """

    passes_options = True  # else words that look like options, before `--`, are mistakes

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes the command's own options out of the words."""
        ordered = self.ordered(ctx, args)
        if "--help" in ordered[ordered.index("--") :]:
            path = f"pie-py {ctx.info_name}"
            click.echo(f"`{path} --help` tells the options of `{path}` itself", err=True)
        return super().parse_args(ctx, ordered)

    def ordered(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words with the own options first, and `--` between them and the rest."""
        options = {
            name: one
            for one in self.get_params(ctx)
            if isinstance(one, click.Option)
            for name in (*one.opts, *one.secondary_opts)
        }
        own: list[str] = []
        passed: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":
                passed += words
                break
            name, equals, _ = word.partition("=")
            is_help = name in ctx.help_option_names and self.passes_options
            if name not in options or (passed and is_help):
                if not self.passes_options and re.fullmatch("--?[a-zA-Z][a-z-]*", name):
                    near = get_close_matches(name, options)
                    raise click.NoSuchOption(name, possibilities=near, ctx=ctx)
                passed.append(word)
                continue
            own.append(word)
            if not (equals or options[name].is_flag or options[name].count):
                value = next(words, None)
                if value is None and not ctx.resilient_parsing:
                    raise click.BadOptionUsage(name, f"Option {name!r} requires an argument.", ctx)
                own += [] if value is None else [value]
        return [*own, "--", *passed]


class TextCommand(PassingCommand):
    """A command whose last argument is a text, quoted or not, that may begin with `-`."""

    passes_options = False


def goal_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a launch's goal, and passes those given as `goal`, as of `launch`."""

    @options(
        click.option(
            "--expected-tokens",
            type=click.IntRange(min=1),
            metavar="N",
            help="Tokens that it will generate; else the server learns them of earlier runs.",
        ),
        click.option(
            "--objective",
            type=click.Choice(["latency", "throughput"]),
            help="It goes before your other instances, or behind them, where not all have room.",
        ),
        click.option(
            "--deadline",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="From now on; it goes first once they become few, and goes on when they are over.",
        ),
    )
    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> None:
        given = {name: options.pop(name) for name in ("deadline", "objective", "expected_tokens")}
        goal = {name: value for name, value in given.items() if value is not None}
        function(*args, goal=goal, **options)

    return wrapped


def with_files(args: Sequence[str]) -> list[str]:
    """The arguments, with `@PATH` replaced by the text of that file, if there is one; `@@` is `@`.
    Raises `click.UsageError`: a file is not UTF-8 text, or can't be read.
    """
    return [_expanded(arg) if arg.startswith("@") else arg for arg in args]


def _expanded(arg: str) -> str:
    if arg.startswith("@@"):
        return arg[1:]
    path = Path(arg[1:])
    try:
        if not path.is_file():
            return arg
    except (OSError, ValueError):  # nothing that a file could be called
        return arg
    try:
        return utf8(path.read_bytes(), str(path))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None


def utf8(data: bytes, what: str) -> str:
    """A text in UTF-8, with or without a mark. Raises `click.UsageError` if it is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{what} is not a text in UTF-8 (byte {error.start}); `iconv -f latin1 -t utf-8` makes"
            " one of Latin-1"
        ) from None
