"""Sessions of agents: growing chats behind a common beginning, each turn of which calls a tool."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

WORDS = ("the", "dog", "house", "river", "ran", "saw", "red", "old", "small", "with", "and", "then")
TOOLS = ("read", "build", "task")
SUBAGENTS = 0.44  # of sessions have one
SLOW = 0.2  # of calls are of the slow tool
OUTPUT = 48  # tokens that a turn writes at most


@dataclass(frozen=True)
class Shape:
    """The kind of a session."""

    turns: int
    words: int  # that each tool's result has
    fast: float  # seconds that tools take, in the mean
    slow: float
    first: int = 600  # words of the common beginning
    output: int = OUTPUT


class Turn(NamedTuple):
    """One request: what it writes, and what comes of the tool that it calls."""

    tool: str  # empty for the last one
    output: int = OUTPUT  # tokens
    result: str = ""
    seconds: float = 0.0  # that the tool takes
    task: Session | None = None  # a subagent's, in the tool's place


class Session(NamedTuple):
    """Its prompt, and its turns."""

    system: str  # all have the same
    ask: str
    turns: list[Turn]
    is_task: bool = False

    @property
    def tools(self) -> list[str]:
        """Names of all that it may call."""
        return sorted({*TOOLS, *(turn.tool for turn in self.turns if turn.tool)})


def drawn(seed: str, shape: Shape, *, is_task: bool = False) -> Session:
    """A session, or a subagent's."""
    chance, common = random.Random(seed), random.Random(0).choices(WORDS, k=shape.first)
    delegates = not is_task and chance.random() < SUBAGENTS
    count = shape.turns // 3 if is_task else shape.turns
    ask = f"{seed}: {' '.join(chance.choices(WORDS, k=60))}"
    turns = []
    for turn in range(count - 1):
        tool, task = TOOLS[chance.random() < SLOW], None
        if delegates and turn == count // 2:
            tool, task = "task", drawn(f"{seed} task", shape, is_task=True)
        result, seconds = " ".join(chance.choices(WORDS, k=shape.words)), 0.0
        if task is None:
            seconds = (shape.slow if tool == "build" else shape.fast) * chance.uniform(0.7, 1.3)
        turns.append(Turn(tool, shape.output, result, seconds, task))
    return Session(" ".join(common), ask, [*turns, Turn("", shape.output)], is_task)


def read_trace(file: str) -> dict[str, Any]:
    """A recorded session: `first`, tokens of its beginning, and `turns`, of each the tool, tokens
    written and of the result, seconds, and the trace of a subagent, or null.
    """
    found: dict[str, Any] = json.loads(Path(file).read_text())
    return found


def traced(seed: str, trace: dict[str, Any], scale: float, *, is_task: bool = False) -> Session:
    """A session with a trace's sizes, so many times as long, and texts of its own."""
    chance, common = random.Random(seed), random.Random(0)

    def words(tokens: int, of: random.Random = chance) -> str:
        return " ".join(of.choices(WORDS, k=max(1, round(tokens * scale))))

    turns = [
        Turn(
            tool,
            max(1, round(output * scale)),
            words(result),
            seconds * chance.uniform(0.7, 1.3),
            task and traced(f"{seed} task", task, scale, is_task=True),
        )
        for tool, output, result, seconds, task in trace["turns"]
    ]
    return Session(words(trace["first"], common), f"{seed}: {words(60)}", turns, is_task)


def longest(session: Session) -> int:
    """Words of its last prompt, about."""
    return len(session.system.split()) + sum(len(turn.result.split()) for turn in session.turns)
