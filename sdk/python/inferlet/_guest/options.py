"""The options of a program, from the parameters of its `main`.

`async def main(prompt: str, max_tokens: int = 64)` takes `--prompt TEXT` and `--max-tokens N`.
"""

from __future__ import annotations

import inspect
import re
from argparse import ArgumentParser, BooleanOptionalAction, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

SIMPLE = (str, int, float, bool)


def wants_options(parameters: Sequence[inspect.Parameter]) -> bool:
    """Whether `main` takes options by name, rather than all arguments as one list of texts."""
    first = parameters[0].annotation
    return len(parameters) > 1 or first in SIMPLE or get_args(first) not in ((), (str,))


def parse(main: Callable[..., Any], args: Sequence[str]) -> dict[str, Any]:
    """The arguments of `main`, by name.

    `--help` and wrong options leave by SystemExit, as in argparse. What it says of them comes from
    the docstring of the module, and from the `Args:` of that of `main`.
    """
    text = main.__globals__.get("__doc__") or main.__doc__ or ""
    name = main.__globals__.get("__file__", "").removesuffix(".py")
    parameters = list(inspect.signature(main, eval_str=True).parameters.values())
    parser = ArgumentParser(
        name,
        description=text.strip(),
        epilog=f"Example:\n  {_example(name, parameters)}".replace("%", "%%"),
        formatter_class=RawDescriptionHelpFormatter,
    )
    told = described(main.__doc__ or "")
    for one in parameters:
        _add(parser, one, told.get(one.name, ""))
    return vars(parser.parse_args(list(args)))


def described(doc: str) -> dict[str, str]:
    """What the `Args:` section of a docstring says of each parameter."""
    section = re.search(r"\n\s*Args:\n(.*?)(\n\s*\n|$)", inspect.cleandoc(doc), re.DOTALL)
    found: dict[str, str] = {}
    name = ""
    for line in section[1].splitlines() if section else []:
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name, found[start[1]] = start[1], start[2]
        elif name:
            found[name] += " " + line.strip()
    return found


def _add(parser: ArgumentParser, one: inspect.Parameter, told: str) -> None:
    required = one.default is inspect.Parameter.empty
    if not required and one.default is not None and told:
        told += f" (default: {one.default})"
    options: dict[str, Any] = {
        "required": required,
        "default": None if required else one.default,
        "help": told.replace("%", "%%") or None,
    }
    kind = _item_type(one)
    if get_origin(one.annotation) is Literal:
        options["choices"] = get_args(one.annotation)
    elif kind is bool:
        options["action"] = BooleanOptionalAction
    else:
        options["type"] = kind
        if _is_list(one):
            options["nargs"] = "*"
    parser.add_argument("--" + one.name.replace("_", "-"), **options)


def _example(name: str, parameters: Sequence[inspect.Parameter]) -> str:
    """A command with what is required, or with the first option that has a value."""
    empty = inspect.Parameter.empty
    shown = [one for one in parameters if one.default is empty]
    shown = shown or [one for one in parameters if type(one.default) in (str, int, float)][:1]
    words = ["pie-py run", name]
    for one in shown:
        kind = get_args(one.annotation) if get_origin(one.annotation) is Literal else ()
        value = (kind or (_SAMPLES.get(_item_type(one), ""),))[0]
        value = value if one.default is empty else one.default
        option = "--" + one.name.replace("_", "-")
        text = str(value)
        quoted = f'"{text}"' if re.search(r"[^\w.-]", text) or not text else text
        words += [option] if _item_type(one) is bool else [option, quoted]
    return " ".join(words)


_SAMPLES: dict[type, object] = {str: "Once upon a time", int: 4, float: 0.5}


def _is_list(one: inspect.Parameter) -> bool:
    return (get_origin(_present(one.annotation)) or one.annotation) is list


def _item_type(one: inspect.Parameter) -> type:
    """The type of a value: of `list[int]` and `int | None` it is int."""
    kind = _present(one.annotation)
    if get_origin(kind) is Literal:
        return str
    found: type = get_args(kind)[0] if get_args(kind) else kind
    return found


def _present(annotation: Any) -> Any:
    """What an annotation says beside `| None`."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    return kinds[0] if type(None) in get_args(annotation) else annotation
