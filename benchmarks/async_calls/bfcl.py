"""The Berkeley function-calling sets, as they come in the package `bfcl-eval` (AsyncLM, section 6).

Nothing of it is copied: questions, ground truth and the simulators of multi-turn sets are read
where they are installed. Simulators take microseconds, so each call first waits as long as its
function is drawn to take; the functions of the parallel sets have no simulator and only wait.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import anyio

from benchmarks.async_calls.drawn import draw_seconds
from benchmarks.async_calls.jobs import Job, PlannedCall
from pie_py.client import Function

SETS = ("v1-parallel", "live-parallel", "multi-turn-base", "multi-step-parallel")
_FILES = {
    "v1-parallel": "BFCL_v4_parallel.json",
    "live-parallel": "BFCL_v4_live_parallel.json",
    "multi-turn-base": "BFCL_v4_multi_turn_base.json",
    "multi-step-parallel": "BFCL_v4_multi_turn_base.json",
}
CHAINS, MOST_CALLS = 3, 5  # of multi-step-parallel: three tasks of one to five calls each
_MISSING = (
    "the BFCL sets come with the package bfcl-eval: `pip install --no-deps --target FOLDER"
    " bfcl-eval mpmath`, then --bfcl FOLDER"
)


def load(name: str, folder: Path | None, seed: int, count: int) -> list[Job]:
    """Jobs of a set, so many at the most, in an order that the seed gives.

    Args:
        name: one of `SETS`.
        folder: where the package is installed; None for where Python finds it.
        seed: of the order, the functions' times and the combinations.
        count: how many.

    Raises:
        RuntimeError: there is no such package, or it is another version of it.
    """
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        package = importlib.import_module("bfcl_eval")
        data = Path(next(iter(package.__path__))) / "data"
        entries = _lines(data / _FILES[name])
        truths = {
            one["id"]: one["ground_truth"]
            for one in _lines(data / "possible_answer" / _FILES[name])
        }
        pairs = [(entry, truths[entry["id"]]) for entry in entries]
        random = Random(f"bench-async:{name}:{seed}")
        random.shuffle(pairs)
        if name == "multi-turn-base":
            return [_scenarios([_turns(*pair, len(pair[1]))], seed) for pair in pairs[:count]]
        if name == "multi-step-parallel":
            first = [_turns(*pair, 1) for pair in pairs if 1 <= len(pair[1][0]) <= MOST_CALLS]
            return [_scenarios(random.sample(first, CHAINS), seed) for _ in range(count)]
        return [_parallel(*pair, seed) for pair in pairs[:count]]
    except (ImportError, OSError) as error:
        raise RuntimeError(f"{_MISSING} ({error})") from None
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RuntimeError(f"this version of bfcl-eval has other data: {reason}") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _said(turn: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(message["content"] for message in turn if message["role"] == "user")


def _seconds(function: str, seed: int) -> float:
    """How long a function takes: always the same, as in the paper each has a time of its own."""
    return draw_seconds(Random(f"bench-async:{function}:{seed}"))


# Sets of independent calls


def _parallel(entry: Mapping[str, Any], truth: Sequence[Mapping[str, Any]], seed: int) -> Job:
    calls = []
    for number, one in enumerate(truth):
        ((name, arguments),) = one.items()
        given = {key: _first(values) for key, values in arguments.items() if _first(values) != ""}
        calls.append(PlannedCall(f"c{number + 1}", name, given, _seconds(name, seed)))
    needed = {call.name for call in calls}
    tools = []
    for function in entry["function"]:
        if function["name"] in needed:
            seconds = _seconds(function["name"], seed)
            schema = function["parameters"]
            tools.append(
                {
                    "name": function["name"],
                    "description": function["description"],
                    "parameters": {
                        "properties": {key: {} for key in schema["properties"]},
                        "required": schema.get("required", []),
                    },
                    "seconds": seconds,
                    "run": {"kind": "simulated", "seconds": seconds},
                }
            )
    return Job((_said(entry["question"][0]),), tuple(calls), tuple(tools))


def _first(values: Any) -> Any:
    """The first of the values that are right; of structures, the first ones in them."""
    value = values[0] if isinstance(values, list) and values else values
    if isinstance(value, dict):
        return {key: _first(inner) for key, inner in value.items()}
    return value


# Sets with simulators


@dataclass(frozen=True)
class _Scenario:
    """The start of a conversation: what the user says, the calls, and what they act on."""

    text: str
    calls: tuple[str, ...]
    classes: tuple[str, ...]
    state: Mapping[str, Any]

    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods of new simulators, by name."""
        backends = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        found: dict[str, Callable[..., Any]] = {}
        for name in self.classes:
            module = importlib.import_module(backends.CLASS_FILE_PATH_MAPPING[name])
            simulator = getattr(module, name)()
            if name not in backends.STATELESS_CLASSES:
                simulator._load_scenario(copy.deepcopy(self.state.get(name, {})))
            members = inspect.getmembers(simulator, inspect.ismethod)
            found |= {key: method for key, method in members if not key.startswith("_")}
        return found


def _turns(entry: Mapping[str, Any], truth: Sequence[Sequence[str]], turns: int) -> _Scenario:
    return _Scenario(
        "\n".join(_said(turn) for turn in entry["question"][:turns]),
        tuple(call for turn in truth[:turns] for call in turn),
        tuple(entry["involved_classes"]),
        entry["initial_config"],
    )


def _scenarios(scenarios: Sequence[_Scenario], seed: int) -> Job:
    """A job of one chain a scenario; of several, each has simulators and functions of its own."""
    several = len(scenarios) > 1
    calls: list[PlannedCall] = []
    for scenario, letter in zip(scenarios, "abc", strict=False):
        methods = scenario.methods()
        before: tuple[str, ...] = ()
        for step, text in enumerate(scenario.calls):
            name, arguments = _read(text, methods)
            called = f"{letter}.{name}" if several else name
            seconds = _seconds(name, seed)
            calls.append(PlannedCall(f"{letter}{step + 1}", called, arguments, seconds, before))
            before = (calls[-1].identifier,)
    needed = {call.name: call.seconds for call in calls}

    def functions() -> list[Function]:
        found = []
        for scenario, letter in zip(scenarios, "abc", strict=False):
            for name, method in scenario.methods().items():
                called = f"{letter}.{name}" if several else name
                if called in needed:
                    seconds = needed[called]
                    found.append(Function(_slow(method, seconds), seconds, name=called))
        return found

    lines = [scenario.text for scenario in scenarios]
    request = "\n".join(f"- {line}" for line in lines) if several else lines[0]
    return Job((request,), tuple(calls), functions=functions)


def _read(text: str, methods: Mapping[str, Callable[..., Any]]) -> tuple[str, dict[str, Any]]:
    """A call of the ground truth: the function's name and all arguments by name."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise ValueError(f"{text!r} is no call")
    given = [ast.literal_eval(value) for value in tree.args]
    named = {str(one.arg): ast.literal_eval(one.value) for one in tree.keywords}
    bound = inspect.signature(methods[tree.func.id]).bind(*given, **named)
    return tree.func.id, dict(bound.arguments)


def _slow(method: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The method, after a wait."""

    @wraps(method)
    async def run(**given: Any) -> Any:
        await anyio.sleep(seconds)
        return method(**given)

    return run
