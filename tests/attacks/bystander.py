"""A user who generates text while others attack: how long they wait, and if the text stays right.

It is a process of its own, so that what attackers' clients compute here delays no measurement. It
says each thing that happens in a line: the machine's monotonic clock, a tab, and what.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from pie_py.client.errors import ClientError
from pie_py.client.sync import Client
from pie_py.config.keys import ClientKey, api_key

GUEST = Path(__file__).parent / "guests" / "bystander.py"
TOKENS = 26  # the model is sure of all of them; then the next instance is launched
START_SECONDS = 60.0


@dataclass(frozen=True)
class Gaps:
    """What came to a bystander in some seconds, and when.

    Attributes:
        median_ms: between two pieces of text, from one instance's last to the next one's first,
            too.
        worst_ms: likewise.
        pieces: of text.
        wrong: texts that are other than those before the attack, and errors.
    """

    median_ms: float
    worst_ms: float
    pieces: int
    wrong: tuple[str, ...]


class Bystander:
    """The process, and what it has said."""

    def __init__(self, endpoint: str, key: Path) -> None:
        """Starts it; it goes on until the end of `with`."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, endpoint, str(key)], stdout=subprocess.PIPE, text=True
        )
        self._said: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            date, _, what = line.rstrip("\n").partition("\t")
            self._said.append((float(date), what))

    def since(self, start: float, end: float) -> Gaps:
        """What it noticed between two times of the monotonic clock.

        A wait that has begun within counts with all its length so far.
        """
        said = list(self._said)
        dates = [date for date, what in said if what == "piece" and start <= date <= end]
        before = [date for date, what in said if what == "piece" and date < start]
        dates = [*before[-1:], *dates, end]
        gaps = [(after - first) * 1e3 for first, after in pairwise(dates)]
        wrong = tuple(
            what for date, what in said if what not in ("piece", "right") and start <= date <= end
        )
        return Gaps(statistics.median(gaps), max(gaps), len(dates) - 2, wrong)

    def wait(self, pieces: int, seconds: float) -> None:
        """Waits until it has said so many pieces more.

        Raises:
            AssertionError: it does not within `seconds`.
        """
        begin, enough = len(self._said), time.monotonic() + seconds
        while len(self._said) < begin + pieces:
            if time.monotonic() > enough or self._process.poll() is not None:
                raise AssertionError(f"the bystander gets nothing: {self._said[-5:]}")
            time.sleep(0.02)

    def __enter__(self) -> Self:
        self._reader.start()
        self.wait(2 * TOKENS, START_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()


def _say(what: str) -> None:
    print(f"{time.monotonic()}\t{what}", flush=True)


def _generate(client: Client, program: str) -> str:
    instance = client.launch(program, [str(TOKENS)])
    for _ in instance:
        _say("piece")
    return instance.result()


def _complete(connection: HTTPConnection, key: str) -> str:
    """The same over HTTP, as pieces of a stream."""
    body = {"model": "pie-tiny", "prompt": "Once upon a time", "max_tokens": TOKENS}
    body |= {"temperature": 0, "stream": True}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer, text = connection.getresponse(), ""
    if answer.status != 200:
        raise HTTPException(f"{answer.status} {answer.read()[:150]!r}")
    for line in answer:
        if line.startswith(b"data: {"):
            _say("piece")
            text += json.loads(line[6:])["choices"][0]["text"]
    return text


def _wrong(text: str, right: str) -> str:
    """Where a text differs from the right one, and how."""
    pairs = zip(text, right, strict=False)
    same = next((at for at, (one, other) in enumerate(pairs) if one != other), len(right))
    return f"wrong text from character {same} on: {text[same:][:60]!r}, not {right[same:][:60]!r}"


def main(endpoint: str, key: str) -> None:
    """Generates the same text again and again."""
    right: str | None = None
    while True:
        try:
            with Client(endpoint, key=key, patience=60.0) as client:
                program = client.upload(GUEST, name="bystander")
                while True:
                    text = _generate(client, program)
                    right = right or text
                    _say("right" if text == right else _wrong(text, right))
        except ClientError as error:
            _say(f"{type(error).__name__}: {str(error)[:200]!r}")


def main_over_http(url: str, key: str) -> None:
    """The same through the gateway; each text has a connection of its own, as a newcomer's has."""
    right: str | None = None
    while True:
        connection = HTTPConnection(url.removeprefix("http://"), timeout=60.0)
        try:
            text = _complete(connection, api_key(ClientKey.read(Path(key))))
            right = right or text
            _say("right" if text == right else _wrong(text, right))
        except (OSError, HTTPException) as error:
            _say(f"{type(error).__name__}: {str(error)[:200]!r}")
            time.sleep(0.05)
        finally:
            connection.close()


if __name__ == "__main__":
    (main_over_http if sys.argv[1].startswith("http:") else main)(*sys.argv[1:])
