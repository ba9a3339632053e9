"""Tasks of the user in a run, and the calls that they need."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pie_py.client import Function


@dataclass(frozen=True)
class PlannedCall:
    """A call of the ground truth.

    Attributes:
        identifier: chain and step: `b2`.
        name: of the function.
        arguments: by name, as they should be written.
        seconds: that it is expected to take.
        after: identifiers of calls whose results must have been delivered before it is written.
        task: number of the task that asks for it.
    """

    identifier: str
    name: str
    arguments: Mapping[str, Any]
    seconds: float
    after: tuple[str, ...] = ()
    task: int = 0

    @property
    def text(self) -> str:
        """The call in Python's syntax."""
        given = (f"{key}={_literal(value)}" for key, value in self.arguments.items())
        return f"{self.name}({', '.join(given)})"


@dataclass(frozen=True)
class Job:
    """One request, or several tasks that come one after the other.

    Attributes:
        tasks: what the user says; the first is the prompt, the others come as interrupts.
        calls: that they need.
        tools: specifications, as in a tools file.
        arrivals: seconds after the first task at which each further one comes.
        functions: makes the functions that run at the client, for each run again.
    """

    tasks: tuple[str, ...]
    calls: tuple[PlannedCall, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    arrivals: tuple[float, ...] = ()
    functions: Callable[[], list[Function]] = list

    def one_by_one(self) -> list[Job]:
        """The tasks as jobs of their own."""
        return [
            replace(
                self,
                tasks=(task,),
                arrivals=(),
                calls=tuple(replace(c, task=0) for c in self.calls if c.task == number),
            )
            for number, task in enumerate(self.tasks)
        ]

    def script(self, order: str, seed: int) -> str:
        """The script by which the calls are written whatever the model chooses."""
        calls = [
            {
                "id": call.identifier,
                "call": call.text,
                "after": call.after,
                "task": call.task,
                "seconds": call.seconds,
            }
            for call in self.calls
        ]
        return json.dumps({"calls": calls, "order": order, "seed": seed})


@dataclass
class Verdict:
    """How many calls were right.

    Attributes:
        right: of the ground truth, made once, at the right time, with the right arguments.
        wrong: others.
        missing: of the ground truth, not made rightly.
    """

    right: int = 0
    wrong: int = 0
    missing: int = 0

    def add(self, other: Verdict) -> None:
        """Adds another run's."""
        self.right += other.right
        self.wrong += other.wrong
        self.missing += other.missing

    @property
    def all_right(self) -> bool:
        """True if nothing is wrong or missing."""
        return not self.wrong and not self.missing


def judge(planned: Sequence[PlannedCall], made: Sequence[Mapping[str, Any]]) -> Verdict:
    """Compares what was called with the ground truth.

    Args:
        planned: the ground truth.
        made: calls of a record, in the order of writing.
    """
    verdict = Verdict()
    delivered: dict[str, float] = {}  # of calls that were right, by the plan's identifier
    taken: set[str] = set()
    for one in made:
        found = _read(str(one["call"]))
        match = next(
            (
                call
                for call in planned
                if call.identifier not in taken
                and found == (call.name, dict(call.arguments))
                and all(delivered.get(k, float("inf")) <= one["written"] for k in call.after)
            ),
            None,
        )
        if match is None:
            verdict.wrong += 1
            continue
        taken.add(match.identifier)
        if one["delivered"] is not None:
            delivered[match.identifier] = one["delivered"]
    verdict.right = len(taken)
    verdict.missing = len(planned) - len(taken)
    return verdict


def _read(text: str) -> tuple[str, dict[str, Any]] | None:
    """A call's name and arguments by name; None if it is something else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args:
            return None
        return ast.unparse(tree.func), {
            str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords
        }
    except (SyntaxError, ValueError):
        return None


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
