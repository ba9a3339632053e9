"""The files of `pie-py batch`: lines that ask, and lines that answer them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pie_py.client.errors import ClientError, RpcError
from pie_py.config.whole_files import write_whole


class BadLine(ClientError):
    """A line that cannot be asked."""


@dataclass(frozen=True)
class Line:
    """A line that asks."""

    number: int  # counted from 1
    text: bytes  # of it
    facts: dict[str, Any]  # the object that it is; empty of one that is none
    wrong: str = ""  # why it cannot be asked; empty if it can

    @property
    def is_openai(self) -> bool:
        """True if it is one of OpenAI's batches."""
        return isinstance(self.facts.get("body"), dict) and "url" in self.facts

    @property
    def head(self) -> dict[str, Any]:
        """The facts by which its answer tells what it answers."""
        named = {name: self.facts[name] for name in ("custom_id",) if name in self.facts}
        if self.is_openai:
            return {"id": f"batch_req_{self.number}", **named}
        return {"line": self.number, "of": hashlib.sha256(self.text).hexdigest()[:16], **named}

    def arguments(self, known: dict[str, Any], *, with_url: bool) -> dict[str, Any]:
        """The fields that the program gets: the line's over those that are `known` of all."""
        if self.is_openai:
            url = {"url": self.facts["url"]} if with_url else {}
            return {**known, **self.facts["body"], **url}
        return {**known, **{name: v for name, v in self.facts.items() if name != "custom_id"}}

    def answer(self, result: Any) -> dict[str, Any]:
        """The line that answers, with a result or an exception."""
        if isinstance(result, Exception):
            error = _described(result)
            return {**self.head, **({"response": None} if self.is_openai else {}), "error": error}
        if not self.is_openai:
            return {**self.head, "result": result}
        name = self.head["id"]
        response = {"status_code": 200, "request_id": name, "body": result}
        return {**self.head, "response": response, "error": None}


def _described(error: Exception) -> dict[str, str]:
    """What has gone wrong with a line."""
    code = error.code if isinstance(error, RpcError) else "failed"
    text = str(error) if isinstance(error, ClientError) else f"{type(error).__name__}: {error}"
    return {"code": code, "message": text}


def _key(head: dict[str, Any]) -> tuple[Any, ...]:
    """What an answer and its line have in common."""
    return (str(head["custom_id"]),) if "id" in head else (head["line"], head["of"])


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that ask."""
    names = set[str]()
    for number, text in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield Line(number, text, {}, f"no JSON: {error}")
            continue
        if not isinstance(facts, dict):
            yield Line(number, text, {}, "no JSON object")
            continue
        line = Line(number, text, facts)
        name = str(facts.get("custom_id", ""))
        if line.is_openai and not name:
            yield Line(number, text, {}, "a request of OpenAI's batches has a `custom_id`")
        elif name in names and name:
            yield Line(number, text, {}, f"another line has the custom_id {name[:100]!r}")
        else:
            names.add(name)
            yield line


class Answers:
    """The file of the lines that answer. What is answered stays; the rest is asked again."""

    def __init__(self, path: Path) -> None:
        """Takes where it is, or will be."""
        self._path = path
        self._answered = set[tuple[Any, ...]]()

    def __enter__(self) -> Answers:
        """Reads what is there, and takes out what is no answer: errors, and a line that a crash has
        cut short. Raises `click.UsageError`: it is another file than of answers.
        """
        before = self._path.read_bytes() if self._path.exists() else b""
        kept = list[bytes]()
        *whole, _ = before.split(b"\n")
        for number, text in enumerate(whole, 1):
            found = self._read(text, number)
            if found.get("error") is None:
                self._answered.add(_key(found))
                kept.append(text + b"\n")
        if len(data := b"".join(kept)) < len(before):
            write_whole(self._path, data, self._path.stat().st_mode & 0o777)
        self._file = self._path.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self._file.close()

    def _read(self, text: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(text)
            _key(found)
            if "result" in found or "error" in found:
                answer: dict[str, Any] = found
                return answer
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise click.UsageError(
            f"line {number} of {self._path} is no answer of a batch: give another file for them"
        )

    def has(self, line: Line) -> bool:
        """True if a line is answered."""
        return not line.wrong and _key(line.head) in self._answered

    def add(self, answer: dict[str, Any]) -> None:
        """Writes an answer, at once."""
        text = json.dumps(answer, ensure_ascii=False)
        self._file.write(text.encode(errors="backslashreplace") + b"\n")
        self._file.flush()
