"""Functions that tests send: their module's own things, as a user would write them."""

from __future__ import annotations

import asyncio
import enum
import functools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydantic import BaseModel

from inferlet import Context, Model, PieError, Sampler
from inferlet import session as told
from pie_py.client import inferlet
from support import travelling_helper
from support.travelling_helper import shout

LIMIT = 4
DIGITS = re.compile(r"\d+")  # no data: its statement goes


def one_more(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def called(n: int) -> int:
        return function(n) + 1

    return called


@one_more
def doubled(n: int) -> int:
    return 2 * n


class Refused(Exception):
    def __init__(self, reason: str, code: int = 7) -> None:
        super().__init__(reason)
        self.code = code


class Stop(SystemExit):
    """Known at the caller and in the inferlet."""


class Halt(BaseException):
    """So is this."""


def leave(kind: str) -> NoReturn:
    """Raises what is no `Exception`; by `nested`, one that has such a cause and such a value."""
    match kind:
        case "Stop":
            raise Stop(3)
        case "Halt":
            raise Halt
        case "BaseExceptionGroup":
            raise BaseExceptionGroup("several", [SystemExit(0), ValueError("v")])
        case "CancelledError":
            raise asyncio.CancelledError
        case "nested":
            raise ValueError(SystemExit(0)) from Stop(0)
    raise {"SystemExit": SystemExit(0), "KeyboardInterrupt": KeyboardInterrupt(),
           "GeneratorExit": GeneratorExit("g")}[kind]  # fmt: skip


def leave_while_yielding(kind: str) -> Iterator[int]:
    yield 1
    leave(kind)


async def leave_in_a_task(status: int) -> None:
    async def task() -> None:
        await asyncio.sleep(0)
        raise SystemExit(status)

    await asyncio.gather(task())


class Leaver:
    def __init__(self, kind: str = "") -> None:
        if kind:
            leave(kind)

    def leave(self, kind: str) -> None:
        leave(kind)


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Point:
    x: int
    y: int = LIMIT
    tags: list[str] = field(default_factory=list)

    def moved(self, by: int) -> Point:
        return Point(self.x + by, self.y, self.tags)


ORIGIN = Point(0)


class City(BaseModel):
    name: str
    size: int = 3
    where: Point = ORIGIN


async def complete(prompt: str, *, tokens: int = LIMIT) -> str:
    context = Context(Model.load()).fill(prompt)
    print("thinking of", prompt)
    return await context.generate(Sampler.argmax(), max_tokens=tokens).collect_text()


def mixed(value: Any, city: City) -> tuple[Any, City, Point, Colour]:
    assert isinstance(city.where, Point)
    grown = City(name=shout(city.name), size=int(DIGITS.findall("a 17")[0]))
    return value, grown, city.where.moved(travelling_helper.STEP), Colour.RED


@inferlet
def refuse(depth: int) -> NoReturn:
    def inner() -> NoReturn:
        raise Refused("no") from ValueError("because")  # the line that tracebacks name

    if depth:
        refuse(depth - 1)
    inner()


def unknown_error() -> NoReturn:
    class Hidden(Exception):
        pass

    raise Hidden("of the inferlet alone")


def long_line() -> None:
    print("ä" * (9 << 20))


def too_long() -> bytes:
    try:
        told.send_blob(bytes(3 << 20))
    except PieError:
        print("refused")
    return bytes(3 << 20)


async def count(n: int) -> AsyncIterator[Point]:
    for i in range(n):
        yield Point(i)


def talk() -> None:
    told.send("a message\n")
    print("printed", end="")


class Account:
    def __init__(self, owner: str) -> None:
        if not owner:
            raise Refused("nameless")
        self.owner = owner
        self.sum = 0

    async def add(self, amount: int) -> int:
        self.sum += amount
        return self.sum

    def history(self) -> Iterator[str]:
        yield self.owner
        yield str(self.sum)

    def fail(self) -> NoReturn:
        raise Refused(self.owner)
