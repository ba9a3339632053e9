"""A record of a program's API calls: lines of JSON, which tell its run as it has seen it.

The first line is the head, then comes a line for each call of the API in order, and last the end::

    {"record":1, "instance":"…", "program":"…", "kind":"python", "args":[…], …}
    {"call":"runtime.create-queue", "args":["pie-tiny"], "gives":1, "ms":0.2}
    {"call":"runtime.take-text", "args":[7], "fails":"not-ready: …", "ms":0.3}
    {"end":"finished", "text":"…"}

Bytes are base64; types are those of the contract. A guest's only window on the world is the API, so
the same program that gets the same answers does the same again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1


class BadRecord(ValueError):
    """A file that is no record, or one of another version; the text says which."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what the program asked, and what it got.

    Attributes:
        name: of the function, such as `runtime.wait`.
        args: its arguments, as `plain` makes them.
        answer: its result, as `plain` makes it.
        fails: its error instead, `code: message`.
        ms: since the program's first call.
        open: the instance ended while it waited for the answer.
    """

    name: str
    args: list[Any]
    answer: Any = None
    fails: str | None = None
    ms: float = 0
    open: bool = False


@dataclass(frozen=True)
class Record:
    """A record as it was read: `end` and `text` are how the instance ended and with what."""

    head: dict[str, Any]
    calls: list[Call]
    end: str
    text: str


def read_record(path: Path) -> Record:
    """Reads a record; one whose server was killed ends where the file does.

    Raises:
        BadRecord: it is none, or of another version.
        OSError: the file cannot be read.
    """
    lines = _lines(path)
    head = next(lines, {})
    if head.get("record") != FORMAT:
        version = head.get("record")
        raise BadRecord(
            f"{path} is no record of API calls; `pie-py run NAME --record FILE` makes one"
            if version is None
            else f"{path} is a record of format {version}, and this pie-py reads {FORMAT}"
        )
    calls: list[Call] = []
    end, text = "cut", "the record was cut off: its server was killed"
    for entry in lines:
        if "end" in entry:
            end, text = entry["end"], entry["text"]
            break
        answer, fails = entry.get("gives"), entry.get("fails")
        calls.append(
            Call(entry["call"], entry["args"], answer, fails, entry["ms"], entry.get("open", False))
        )
    return Record(head, calls, end, text)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", errors="surrogatepass") as file:
        for number, text in enumerate(file):
            try:
                entry = json.loads(text)
                if not isinstance(entry, dict):
                    raise BadRecord(f"{path} is no record of API calls")
            except ValueError:
                if number == 0:
                    raise BadRecord(f"{path} is no record of API calls") from None
                return  # a line that was under way when the server was killed
            yield entry
