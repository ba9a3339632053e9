"""Instructor: objects, by each of its modes that OpenAI's and Anthropic's APIs have."""

from typing import Any, Literal

import instructor
from cases import MODEL, V1, case, run
from openai import OpenAI
from pydantic import BaseModel

TEXT = [{"role": "user", "content": "Ann is 31 years old and likes red."}]
KEPT: dict[str, Any] = {"max_retries": 1, "temperature": 0}


class Person(BaseModel):
    """A person."""

    age: Literal[30, 31, 32]
    colour: Literal["red", "green"]


def _by(mode: instructor.Mode) -> Any:
    return instructor.from_openai(OpenAI(base_url=V1, api_key="none", max_retries=0), mode=mode)


def _create(mode: instructor.Mode, **more: Any) -> None:
    found = _by(mode).create(model=MODEL, messages=TEXT, response_model=Person, **KEPT, **more)
    assert isinstance(found, Person)


@case()
def tools() -> None:
    """A forced call."""
    _create(instructor.Mode.TOOLS)


@case()
def tools_strict() -> None:
    """A forced call of a strict function."""
    _create(instructor.Mode.TOOLS_STRICT)


run()
