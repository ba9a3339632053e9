"""A tool: what the model is told of a function, and what runs when it is called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from asynclm.cml.calls import Call, CallError
from asynclm.cml.grammars import Signature

Run: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]
DEFAULT_SECONDS = 0.1  # of a call of which nothing is known


class ToolError(Exception):
    """A call failed; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The beginning of a result that is too large, and how large it is in all."""

    text: str
    length: int


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    `run` gets the arguments by name and returns a value that JSON can express, text cut short as
    `Cut`, or raises; whatever it raises becomes an error value.
    """

    name: str
    run: Run
    description: str = ""
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # schemas, in order
    required: Sequence[str] = ()  # parameters
    seconds: float = DEFAULT_SECONDS  # that a call is expected to take
    timeout: float | None = None  # seconds after which a call is given up, if not the executor's

    @property
    def signature(self) -> Signature:
        """Its part in the grammar of calls."""
        return Signature(self.name, self.parameters, tuple(self.required))

    def arguments(self, call: Call) -> dict[str, Any]:
        """The arguments of a call by name. Raises `CallError` if there are others, or some lack."""
        for name in call.arguments:
            if name not in self.parameters:
                raise CallError(f"{self.name} has no argument {name}")
        if missing := [name for name in self.required if name not in call.arguments]:
            raise CallError(f"{self.name} lacks the argument {missing[0]}")
        return dict(call.arguments)

    def to_json(self) -> dict[str, Any]:
        """The specification as OpenAI's API has it, with `seconds`."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": dict(self.parameters),
                    "required": list(self.required),
                },
            },
            "seconds": round(self.seconds, 2),
        }
