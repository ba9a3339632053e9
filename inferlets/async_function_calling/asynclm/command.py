"""The command line: alone here, so that `--help` and wrong options import little else."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from asynclm.choices import POLICIES, Mode, Style

DEMO_REQUEST = (
    "- fetch weather with city Paris, then send mail with text the result.\n"
    "- find train with place Basel."
)


def parse(args: Sequence[str], **more: str) -> tuple[Namespace, ArgumentParser]:
    """The options of a command line, and what refuses those that are wrong together.

    Args:
        args: the command line.
        more: names of further options, with their help.
    """
    parser = ArgumentParser(
        "async_function_calling",
        description="Answers a request with function calls. A model that was not trained on CML, as"
        " pie-tiny was, is made to begin with a call; which one is its choice.",
    )
    valued: set[str] = set()

    def add(option: str, **how: Any) -> None:
        if parser.add_argument(option, **how).nargs is None:
            valued.add(option)

    add("--request", default=DEMO_REQUEST, help="what is to be done; a demonstration by default")
    add(
        "--tools", help="JSON list of tools, see docs/async-function-calling.md; @FILE reads a file"
    )
    add("--mode", choices=list(Mode), default=Mode.ASYNC, help="how calls are made")
    add("--model", help="the server's default one if not given")
    add("--adapter", help="LoRA of the model that all goes through; `cml` if it has that one")
    add("--style", choices=list(Style), help="of the prompt; what suits the model if not given")
    add("--policy", choices=POLICIES, default="cheapest", help="of the KV cache in waits")
    add(
        "--max-tokens",
        type=int,
        help="most tokens to generate; 1024, or 256 of a model that was not trained on CML",
    )
    add("--most-value-tokens", type=int, default=256, help="of a result; longer ones are cut")
    add("--limit", type=int, default=16, help="calls that run at once")
    add("--timeout", type=float, default=30.0, help="seconds for a call")
    add("--temperature", type=float, default=0.0, help="0 is greedy")
    add("--seed", type=int, help="makes the choices repeatable")
    add("--declared-times", action="store_true", help="use the tools' own times, and learn none")
    add("--interactive", action="store_true", help="take tasks from the client until it closes")
    add("--topic", help="take messages of other inferlets that are broadcast to this topic")
    add("--events", action="store_true", help="send events, and return all about it, as JSON")
    for name, text in more.items():
        add(f"--{name}", help=text)
    joined: list[str] = []
    words = iter(args)
    for word in words:  # the one after an option is its value, even if it begins with `-`
        value = next(words, None) if word in valued else None
        joined.append(word if value is None else f"{word}={value}")
    return parser.parse_args(joined), parser
