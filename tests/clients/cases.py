"""What a client's script judges itself with. It runs in the client's environment, without pie_py.

    python NAME.py BASE_URL MODEL

prints a line of JSON per case: its name, its outcome, and a detail. A case is a function with the
client's own calls. It is right if it returns; what it expects to be refused has to be, by status
and words. Cases hold the server to what it promises (shapes, order, echoes, reasons of an end,
forced calls that fit their schema), whatever the model is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

RIGHT, REFUSED, WRONG, UNJUDGED = "right", "refused", "wrong", "unjudged"
DETAIL = 600  # characters

_parser = argparse.ArgumentParser()
_parser.add_argument("base_url")
_parser.add_argument("model")
_arguments, _ = _parser.parse_known_args()
BASE: str = _arguments.base_url  # without a slash at its end
V1 = f"{BASE}/v1"  # where OpenAI's clients want it
MODEL: str = _arguments.model


class Case(NamedTuple):
    """A function that is tried."""

    name: str
    try_it: Callable[[], Any]  # may be async
    refused: tuple[int, str] | None  # the status and words that are expected
    perhaps: bool  # of `refused`: it may be right as well, by a model that is larger
    wit: str  # what a model has to be good enough for; then no failure but the server's is judged


_CASES: list[Case] = []


def case(
    group: str = "",
    *,
    refused: tuple[int, str] | None = None,
    perhaps: bool = False,
    wit: str = "",
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Makes the function below a case, of its own name behind that of its group."""

    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        name = f"{group}: {function.__name__}" if group else function.__name__
        _CASES.append(Case(name, function, refused, perhaps, wit))
        return function

    return add


def tell(name: str, outcome: str, detail: str = "") -> None:
    """Prints a case's line."""
    line = {"case": name, "outcome": outcome, "detail": detail[:DETAIL]}
    print(json.dumps(line), file=sys.__stdout__, flush=True)


def run() -> None:
    """Tries all cases in turn, in one event loop."""
    with asyncio.Runner() as loop, contextlib.redirect_stdout(sys.stderr):
        for one in _CASES:
            tell(one.name, *_judge(one, loop))


def _judge(one: Case, loop: asyncio.Runner) -> tuple[str, str]:
    """Its outcome and a detail."""
    try:
        given = one.try_it()
        if inspect.isawaitable(given):
            loop.run(_wait(given))
    except Exception as error:
        told = " <- ".join(f"{type(each).__name__}: {each}" for each in causes(error))
        statuses = {getattr(each, "status_code", None) for each in causes(error)} - {None}
        if one.refused is not None:
            status, words = one.refused
            if words in told and (status in statuses or str(status) in told):
                return REFUSED, f"{status}: {words}"
        if one.wit and not statuses:
            return UNJUDGED, one.wit
        return WRONG, f"{_place(error)}: {told}"
    if one.refused is None or one.perhaps:
        return RIGHT, ""
    return WRONG, f"not refused: {one.refused[1]}"


async def _wait(given: Any) -> None:
    await given


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it came from: clients wrap the server's."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _place(error: BaseException) -> str:
    """The script's line that it came from."""
    own = Path(sys.argv[0]).name
    frames = traceback.extract_tb(error.__traceback__)
    return next((f"{own}:{f.lineno}" for f in reversed(frames) if f.filename.endswith(own)), own)
