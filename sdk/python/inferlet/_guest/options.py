"""The options of a program, from the parameters of its `main`.

`async def main(prompt: str, max_tokens: int = 64)` takes `--prompt TEXT` and `--max-tokens N`.

The word after an option is its value, whatever it begins with: `--prompt "-h"` asks for no help, as
with getopt and the other languages' SDKs. An option of a list takes all words up to the next that
begins with `-`, and may be repeated; `--add=-x` gives it such a word.
"""

from __future__ import annotations

import inspect
import re
from argparse import (
    SUPPRESS,
    ArgumentParser,
    BooleanOptionalAction,
    RawDescriptionHelpFormatter,
)
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args, get_origin

EMPTY = inspect.Parameter.empty
SIMPLE = (str, int, float, bool)
# Types that take several words, and how they are made of a list.
COLLECTIONS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    Sequence: list,
    Iterable: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}


def wants_options(parameters: Sequence[inspect.Parameter]) -> bool:
    """Whether `main` takes options by name, rather than all arguments as one list of texts.

    That list is a single parameter `args` without a default; by any other name, it is an option.
    """
    first = parameters[0]
    if len(parameters) > 1 or first.name != "args" or first.default is not EMPTY:
        return True
    return first.annotation in SIMPLE or get_args(first.annotation) not in ((), (str,))


def parse(main: Callable[..., Any], args: Sequence[str]) -> dict[str, Any]:
    """The arguments of `main` that are given, by name.

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
        argument_default=SUPPRESS,  # `main` has its own, and a list would grow from it
    )
    texts = described(main.__doc__ or "")
    for one in parameters:
        _add(parser, one, texts.get(one.name, ""))
    single = {_option(one) for one in parameters if _takes_one_word(one)}
    given = vars(parser.parse_args(_with_values_joined(args, single)))
    for one in parameters:
        if one.name in given and (made := _collection(one)):
            given[one.name] = made(given[one.name])
    return given


def listed(main: Callable[..., Any]) -> dict[str, Any]:
    """What a form for the arguments of `main` is made from: its description and its options.

    The options are None of a `main` that takes no options; such a form has one line of words.
    """
    text = main.__globals__.get("__doc__") or main.__doc__ or ""
    parameters = list(inspect.signature(main, eval_str=True).parameters.values())
    takes = not parameters or (parameters[0].name != "input" and wants_options(parameters))
    texts = described(main.__doc__ or "")
    options = [_listed(one, texts.get(one.name, "")) for one in parameters] if takes else None
    return {"description": inspect.cleandoc(text), "options": options}


def _listed(one: inspect.Parameter, help_text: str) -> dict[str, Any]:
    choices = get_args(_kind(one)) if get_origin(_kind(one)) is Literal else ()
    return {
        "option": _option(one),
        "type": getattr(_item_type(one), "__name__", "str"),
        "choices": [str(each) for each in choices],
        "many": _collection(one) is not None,
        "required": one.default is EMPTY,
        "default": None if one.default in (EMPTY, None) else str(one.default),
        "help": help_text,
    }


def _with_values_joined(args: Sequence[str], single: set[str]) -> list[str]:
    """The arguments with `--option VALUE` as `--option=VALUE`: argparse refuses many values that
    begin with `-`, and takes others for options.
    """
    joined: list[str] = []
    rest = iter(args)
    for word in rest:
        value = next(rest, None) if word in single else None
        joined.append(word if value is None else f"{word}={value}")
    return joined


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


def _add(parser: ArgumentParser, one: inspect.Parameter, help_text: str) -> None:
    required = one.default is EMPTY
    if not required and one.default is not None and help_text:
        help_text += f" (default: {one.default})"
    options: dict[str, Any] = {"required": required, "help": help_text.replace("%", "%%") or None}
    kind = _item_type(one)
    if get_origin(_kind(one)) is Literal:
        options["choices"] = get_args(_kind(one))
    elif kind is bool:
        options["action"] = BooleanOptionalAction
    else:
        options["type"] = kind
        if _collection(one):
            options |= {"nargs": "*", "action": "extend"}
    parser.add_argument(_option(one), **options)


def _option(one: inspect.Parameter) -> str:
    return "--" + one.name.replace("_", "-")


def _example(name: str, parameters: Sequence[inspect.Parameter]) -> str:
    """A command with what is required, or with the first option that has a value."""
    shown = [one for one in parameters if one.default is EMPTY]
    shown = shown or [one for one in parameters if type(one.default) in (str, int, float)][:1]
    words = ["pie-py run", name]
    for one in shown:
        kind = get_args(_kind(one)) if get_origin(_kind(one)) is Literal else ()
        value = (kind or (_SAMPLES.get(_item_type(one), ""),))[0]
        value = value if one.default is EMPTY else one.default
        text = str(value)
        quoted = f'"{text}"' if re.search(r"[^\w.-]", text) or not text else text
        words += [_option(one)] if _item_type(one) is bool else [_option(one), quoted]
    return " ".join(words)


_SAMPLES: dict[type, object] = {str: "Once upon a time", int: 4, float: 0.5}


def _takes_one_word(one: inspect.Parameter) -> bool:
    return not _collection(one) and _item_type(one) is not bool


def _collection(one: inspect.Parameter) -> Callable[[list[Any]], Any] | None:
    """What makes a parameter of a list; None if it takes one value."""
    return COLLECTIONS.get(get_origin(_kind(one)) or _kind(one))


def _item_type(one: inspect.Parameter) -> type:
    """The type of a value: of `list[int]` and `int | None` it is int."""
    kind = _kind(one)
    if get_origin(kind) is Literal or kind in COLLECTIONS:
        return str
    found: type = get_args(kind)[0] if get_args(kind) else kind
    return found


def _kind(one: inspect.Parameter) -> Any:
    """What a parameter is beside `| None`; without an annotation, what its default is, or text."""
    if one.annotation is EMPTY:
        kind = type(one.default)
        return kind if kind in SIMPLE or kind in COLLECTIONS else str
    kinds = [kind for kind in get_args(one.annotation) if kind is not type(None)]
    return kinds[0] if type(None) in get_args(one.annotation) else one.annotation
