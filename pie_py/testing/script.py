"""The script of the replaying model, which a test writes and the worker reads."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCRIPT = "script.json"  # beside the tokenizer, in the model's folder


@dataclass(frozen=True)
class Line:
    """One thing that the model says: tokens, or a text; in contexts whose text has `when`."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    when: str = ""


class ScriptFile:
    """The script on disk, between the test and the worker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_ns = -1
        self._lines: tuple[Line, ...] = ()

    def write(self, lines: Sequence[Line]) -> None:
        """Replaces the script, in one step."""
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps([asdict(line) for line in lines]), encoding="utf-8")
        part.replace(self._path)

    def read(self) -> tuple[Line, ...]:
        """The script as it is now."""
        try:
            changed = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            return ()
        if changed != self._read_ns:
            lines = json.loads(self._path.read_text(encoding="utf-8"))
            self._lines = tuple(
                Line(one["text"], tuple(one["tokens"]), one["when"]) for one in lines
            )
            self._read_ns = changed
        return self._lines


def replaying(folder: Path, lines: Sequence[Line] = ()) -> dict[str, Any]:
    """Settings of a server whose model says these lines, with the tokenizer of the embedded one; it
    reads them in the folder.
    """
    spec = importlib.util.find_spec("pie_inference")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    embedded = Path(spec.submodule_search_locations[0], "embedded", "pie-tiny")
    shutil.copytree(embedded, folder / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    ScriptFile(folder / "model" / SCRIPT).write(lines)
    model = {"source": str(folder / "model"), "name": "replay"}
    return {"models": [model], "worker_module": "pie_py.testing.replaying_worker"}


def next_token(context: Sequence[int], answers: Sequence[Sequence[int]], stop: int) -> int:
    """The token that the model says after a context; `stop` after an answer's end, and where there
    is no answer.

    The answers are those of a conversation: the first that the context does not hold yet as a whole
    is under way, as far as the end of the context is its beginning. The last one is given again.
    """
    start = 0
    for number, answer in enumerate(answers):
        if not answer:
            continue
        if tuple(context[max(start, len(context) - len(answer)) :]) == tuple(answer):
            return stop
        end = _end_of(context, answer, start)
        if end is None or number == len(answers) - 1:
            return answer[_said(context, answer, start)]
        start = end
    return stop


def _end_of(context: Sequence[int], answer: Sequence[int], start: int) -> int | None:
    """Where an answer ends that the context holds from `start` on."""
    size = len(answer)
    for at in range(start, len(context) - size + 1):
        if tuple(context[at : at + size]) == tuple(answer):
            return at + size
    return None


def _said(context: Sequence[int], answer: Sequence[int], start: int) -> int:
    """How much of an answer the end of the context is."""
    for size in range(min(len(answer) - 1, len(context) - start), 0, -1):
        if tuple(context[len(context) - size :]) == tuple(answer[:size]):
            return size
    return 0
