"""The Berkeley function-calling leaderboard's parallel sets, asked in a sentence, answered in CML.

Questions and answers are read from the package `bfcl-eval`; its functions have no body, so each
call returns "ok". A call is right as that leaderboard has it: the function, every required
argument, and of each argument one of the values that are allowed, strings without regard to case
and punctuation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from examples.pie_tiny.call_episodes import Asynchronous
from examples.pie_tiny.corpus.cml import ASYNCHRONOUS
from examples.pie_tiny.corpus.functions import Function
from examples.pie_tiny.corpus.sample import BEGIN, Piece, Sample, turn
from examples.pie_tiny.corpus.tasks import Call, Request, system_prompt
from examples.pie_tiny.episodes import Vocabulary
from examples.pie_tiny.parsing import CallBlock, ParsedCall

SETS = {
    "v1-parallel": "BFCL_v4_parallel.json",
    "live-parallel": "BFCL_v4_live_parallel.json",
}
HUNDREDTHS = 50  # that each call takes
Truth = Mapping[str, Mapping[str, Sequence[Any]]]


class Questioned(Asynchronous):
    """One question of a set.

    Attributes:
        made: the calls, as they came.
    """

    def __init__(self, vocabulary: Vocabulary, entry: Mapping[str, Any], truth: Sequence[Truth]):
        self.made: list[ParsedCall] = []
        self._truth = truth
        super().__init__(vocabulary, _sample(entry, truth), Random(entry["id"]))

    @property
    def right(self) -> int:
        """How many of the calls asked for were made."""
        left = list(self._truth)
        for call in self.made:
            found = next((truth for truth in left if _same(call, truth)), None)
            if found is not None:
                left.remove(found)
        return len(self._truth) - len(left)

    @property
    def exact(self) -> bool:
        """True if all of them were, and no other."""
        return self.violation is None and self.right == len(self.made) == len(self._truth)

    def _start(self, block: CallBlock) -> None:
        self.made.append(block.call)
        if block.identifier:
            self._schedule(self._now + HUNDREDTHS / 100, block.identifier, (0, 0), None)
            self._outstanding += 1


def questions(folder: Path, name: str, vocabulary: Vocabulary) -> list[Questioned]:
    """All questions of a set, from the folder where `bfcl-eval` is installed."""
    data = folder / "bfcl_eval" / "data"
    entries = _lines(data / SETS[name])
    truths = {
        one["id"]: one["ground_truth"] for one in _lines(data / "possible_answer" / SETS[name])
    }
    return [Questioned(vocabulary, entry, truths[entry["id"]]) for entry in entries]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _sample(entry: Mapping[str, Any], truth: Sequence[Truth]) -> Sample:
    functions = [
        Function(_name(one["name"]), tuple(one["parameters"]["properties"]), HUNDREDTHS)
        for one in entry["function"]
    ]
    said = "\n".join(one["content"] for one in entry["question"][0] if one["role"] == "user")
    prompt = turn("system", system_prompt(ASYNCHRONOUS, functions)) + turn("user", said)
    # Judged here, not by the ledger: it needs one call, whose result all calls are given.
    request = Request(tuple(functions), ((Call(Function("any", (), 1), (), "ok"),),))
    pieces = Piece(f"{BEGIN}{prompt}<|assistant|>\n", False), Piece(json.dumps(truth) * 2, True)
    return Sample("bfcl", pieces, {"request": request})


def _name(name: str) -> str:
    """A dotted name as the leaderboard writes it for models that cannot have dots."""
    return name.replace(".", "_")


def _same(call: ParsedCall, truth: Truth) -> bool:
    ((name, allowed),) = truth.items()
    if call.name != _name(name) or not call.arguments.keys() <= allowed.keys():
        return False
    return all(
        "" in values if key not in call.arguments else _is_one_of(call.arguments[key], values)
        for key, values in allowed.items()
    )


def _is_one_of(value: object, allowed: Sequence[Any]) -> bool:
    return any(_equal(value, one) for one in allowed)


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(value, str) and isinstance(wanted, str):
        return _letters(value) == _letters(wanted)
    if isinstance(value, list | tuple) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(_equal, value, wanted))
    if isinstance(value, dict) and isinstance(wanted, dict):  # to lists of allowed values
        return value.keys() == wanted.keys() and all(
            _is_one_of(value[key], wanted[key]) for key in wanted
        )
    same_kind = isinstance(value, bool) == isinstance(wanted, bool)
    return bool(same_kind and value == wanted)


def _letters(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')
