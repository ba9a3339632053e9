"""The options of a program, from the parameters of its `main`.

`async def main(prompt: str, max_tokens: int = 64)` takes `--prompt TEXT` and `--max-tokens N`.

The word after an option is its value, whatever it begins with: `--prompt "-h"` asks for no help, as
with getopt and the other languages' SDKs. An option of a list takes all words up to the next that
begins with `-`, and may be repeated; `--add=-x` gives it such a word.
"""

from __future__ import annotations

import inspect
import re
import sys
from argparse import (
    SUPPRESS,
    ArgumentParser,
    BooleanOptionalAction,
    RawDescriptionHelpFormatter,
)
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, get_args

from annotationlib import Format  # type: ignore[import-not-found]  # of CPython 3.14

from inferlet._guest.words import choices, collection, item, plain, reader

EMPTY = inspect.Parameter.empty
SEVERAL, NAMED = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
SIMPLE = (str, int, float, bool)


def signature(main: Callable[..., Any]) -> inspect.Signature:
    """Of a program's `main`, with types as far as they are there when it runs: names that only a
    type checker imports are not.
    """
    try:
        found = inspect.signature(main)
    except NameError:
        found = inspect.signature(main, annotation_format=Format.FORWARDREF)  # type: ignore[call-arg]
    named = [_with_its_type(one, main) for one in found.parameters.values()]
    return found.replace(parameters=named)


def _with_its_type(one: inspect.Parameter, main: Callable[..., Any]) -> inspect.Parameter:
    kind = one.annotation
    while isinstance(kind, str):  # of `from __future__ import annotations`, or in quotes
        try:
            kind = eval(kind, _module(main))
        except Exception:  # noqa: BLE001  an annotation may be anything
            kind = Any
    return one if kind is one.annotation else one.replace(annotation=kind)


def wants_options(parameters: Sequence[inspect.Parameter]) -> bool:
    """True if `main` takes options by name, rather than all arguments as one list of texts.

    That list is a single parameter `args` without a default; by any other name, it is an option.
    """
    first = parameters[0]
    if len(parameters) == 1 and first.kind is SEVERAL:
        return False
    if len(parameters) > 1 or first.name != "args" or first.default is not EMPTY:
        return True
    return first.annotation in SIMPLE or get_args(first.annotation) not in ((), (str,))


def parse(
    main: Callable[..., Any], takes: inspect.Signature, args: Sequence[str]
) -> inspect.BoundArguments:
    """The arguments of `main`, with a signature, that are given.

    `--help` and wrong options leave by SystemExit, as in argparse. What it says of them comes from
    the docstring of the module, and from the `Args:` of that of `main`.
    """
    module = _module(main)
    text = module.get("__doc__") or main.__doc__ or ""
    name = module.get("__file__", "").removesuffix(".py")
    parameters = [one for one in takes.parameters.values() if one.kind is not NAMED]
    parser = ArgumentParser(
        name,
        description=text.strip(),
        epilog=f"Example:\n  {_example(name, parameters)}".replace("%", "%%"),
        formatter_class=RawDescriptionHelpFormatter,
        argument_default=SUPPRESS,  # `main` has its own, and a list would grow from it
        add_help="help" not in takes.parameters,
    )
    texts = described(main.__doc__ or "")
    for one in parameters:
        _add(parser, one, texts.get(one.name, ""))
    single = {_option(one) for one in parameters if _takes_one_word(one)}
    given = vars(parser.parse_args(_with_values_joined(args, single)))
    for one in parameters:
        if one.name in given and (made := _collection(one)):
            given[one.name] = made(given[one.name])
    ordered = {name: given[name] for name in takes.parameters if name in given}
    return inspect.BoundArguments(takes, OrderedDict(ordered))


def _module(main: Callable[..., Any]) -> dict[str, Any]:
    """The names of the module that `main` is in: of the program's, where `main` is no function."""
    return getattr(main, "__globals__", None) or sys.modules["__main__"].__dict__


def listed(main: Callable[..., Any]) -> dict[str, Any]:
    """The source of a form for the arguments of `main`: its description and its options.

    The options are None of a `main` that takes no options; such a form has one line of words.
    """
    text = _module(main).get("__doc__") or main.__doc__ or ""
    parameters = list(signature(main).parameters.values())
    takes = not parameters or (parameters[0].name != "input" and wants_options(parameters))
    texts = described(main.__doc__ or "")
    named = [one for one in parameters if one.kind not in (SEVERAL, NAMED)]
    options = [_listed(one, texts.get(one.name, "")) for one in named] if takes else None
    return {"description": inspect.cleandoc(text), "options": options}


def _listed(one: inspect.Parameter, help_text: str) -> dict[str, Any]:
    return {
        "option": _option(one),
        "type": getattr(_item_type(one), "__name__", "str"),
        "choices": list(choices(_item_type(one))),
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
    """Each parameter's text in the `Args:` section of a docstring."""
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
    if one.kind is SEVERAL:
        parser.add_argument(one.name, nargs="*", type=reader(kind), help=options["help"])
        return
    if kind is bool and not _collection(one):
        options["action"] = BooleanOptionalAction
    else:
        options["type"] = reader(kind)
        if names := choices(kind):
            options["metavar"] = f"{{{','.join(names)}}}"
        if _collection(one):
            options |= {"nargs": "*", "action": "extend"}
    parser.add_argument(_option(one), dest=one.name, **options)


def _option(one: inspect.Parameter) -> str:
    return "--" + one.name.replace("_", "-")


def _example(name: str, parameters: Sequence[inspect.Parameter]) -> str:
    """A command with what is required, or with the first option that has a value."""
    shown = [one for one in parameters if one.default is EMPTY]
    shown = shown or [one for one in parameters if type(one.default) in (str, int, float)][:1]
    words = ["pie-py run", name]
    for one in shown:
        value = one.default
        if value is EMPTY:
            kind = _item_type(one)
            value = next(iter(choices(kind)), _SAMPLES.get(kind, "") if kind in SIMPLE else "")
        text = str(value)
        quoted = f'"{text}"' if re.search(r"[^\w.-]", text) or not text else text
        words += [_option(one)] if _item_type(one) is bool else [_option(one), quoted]
    return " ".join(words)


_SAMPLES: dict[type, object] = {str: "Once upon a time", int: 4, float: 0.5}


def _takes_one_word(one: inspect.Parameter) -> bool:
    return one.kind is not SEVERAL and not _collection(one) and _item_type(one) is not bool


def _collection(one: inspect.Parameter) -> Callable[[list[Any]], Any] | None:
    """A function that makes a parameter of several words; None if it takes one."""
    return list if one.kind is SEVERAL else collection(_kind(one))


def _item_type(one: inspect.Parameter) -> Any:
    """The type of a word: of `list[int]` and `int | None` it is int."""
    return item(_kind(one)) if collection(_kind(one)) else plain(_kind(one))


def _kind(one: inspect.Parameter) -> Any:
    """The type of a parameter; without an annotation, what its default is, or text."""
    if one.annotation is not EMPTY:
        return plain(one.annotation)
    kind = type(one.default)
    known = kind in SIMPLE or kind is dict or collection(kind) or issubclass(kind, Enum)
    return kind if known else str
