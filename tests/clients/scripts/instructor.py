"""Instructor: objects, by each of its modes that OpenAI's and Anthropic's APIs have."""

from collections.abc import Iterable
from typing import Any, Literal

import anthropic
import instructor
from cases import BASE, MODEL, V1, case, run
from instructor import Mode
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

TEXT = [{"role": "user", "content": "Ann is 31 years old and likes red."}]
KEPT: dict[str, Any] = {"model": MODEL, "max_retries": 0, "temperature": 0, "max_tokens": 300}


class Person(BaseModel):
    """A person."""

    age: Literal[30, 31, 32]
    colour: Literal["red", "green"]


def _by(mode: Mode) -> Any:
    if mode.name.startswith("ANTHROPIC"):
        plain = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
        return instructor.from_anthropic(plain, mode=mode)
    return instructor.from_openai(OpenAI(base_url=V1, api_key="none", max_retries=0), mode=mode)


def _by_mode(mode: Mode) -> None:
    def of_mode() -> None:
        # Anthropic's client knows no `temperature` any more.
        kept = dict(KEPT)
        if mode.name.startswith("ANTHROPIC"):
            del kept["temperature"]
        found = _by(mode).create(messages=TEXT, response_model=Person, **kept)
        assert isinstance(found, Person)

    of_mode.__name__ = mode.name.lower()
    case()(of_mode)


# JSON's other modes say the schema in words alone.
for name in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS", "ANTHROPIC_TOOLS"):
    _by_mode(Mode[name])


@case()
def iterable_in_a_stream() -> None:
    found = _by(Mode.TOOLS).create_iterable(messages=TEXT, response_model=Person, **KEPT)
    assert all(isinstance(each, Person) for each in found)


@case()
def partial_in_a_stream() -> None:
    found = _by(Mode.TOOLS).create_partial(messages=TEXT, response_model=Person, **KEPT)
    *_, last = found
    assert last.age in (30, 31, 32)
    assert last.colour in ("red", "green")


@case(wit="the model has to call of its own accord")
def parallel_tools() -> None:
    found = _by(Mode.PARALLEL_TOOLS).create(messages=TEXT, response_model=Iterable[Person], **KEPT)
    assert all(isinstance(each, Person) for each in found)


@case()
def with_the_answer_beside_it() -> None:
    person, answer = _by(Mode.TOOLS).create_with_completion(
        messages=TEXT, response_model=Person, **KEPT
    )
    assert isinstance(person, Person)
    assert answer.usage.total_tokens > 0


@case()
async def asynchronously() -> None:
    plain = AsyncOpenAI(base_url=V1, api_key="none", max_retries=0)
    client = instructor.from_openai(plain)
    assert isinstance(await client.create(messages=TEXT, response_model=Person, **KEPT), Person)


run()
