"""Peers to compare with: each a process of its own that answers requests, and sleeps between them.

A request is a line of JSON on its standard input: `prompts` (lists of token ids of one length),
`tokens` to generate after each, greedily and whatever they are, and whether the time of decode
`steps` is wanted. The answer is a line: `seconds` for all of it, and `ms_a_token` while decoding,
or null. The first line tells that it is `ready`, and its version.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from benchmarks.options import option

END_SECONDS = 20.0


def vllm_python() -> Any:
    """The option that says where vLLM is: a text, or None."""
    text = "The Python of an environment that has vLLM."
    return option("--vllm-python", metavar="PYTHON", help=text)


class PeerFailed(RuntimeError):
    """A peer does not start, or has ended; the text has its last words."""


class Measured(NamedTuple):
    """One request's times."""

    seconds: float  # from the request to the last token of all
    ms_a_token: float | None  # while all decode


class Peer:
    """A peer's process. While another side is measured it is stopped, so that it takes no core."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Starts it."""
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `__exit__`
        # A group of its own: all its processes stop and go on together.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            process_group=0,
        )
        self.version = ""
        self.pid = self._process.pid

    def wait_ready(self) -> None:
        """Waits until its model is loaded. Raises PeerFailed: it does not start."""
        self.version = self._answer()["ready"]
        self._signal(signal.SIGSTOP)

    def measure(
        self, prompts: Sequence[Sequence[int]], tokens: int, *, steps: bool = True
    ) -> Measured:
        """Runs one request. Raises PeerFailed: it has ended."""
        answer = self.ask(prompts=prompts, tokens=tokens, steps=steps)
        return Measured(answer["seconds"], answer["ms_a_token"])

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request, which may have what this peer alone knows. Raises PeerFailed: it
        has ended.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # then there is no answer
            print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            words = self._log.read().strip().splitlines()[-15:]
            raise PeerFailed("\n    ".join([f"{self.name} has ended:", *words]))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends it and all its processes."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS if error is None else 1)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()


def ideal(folder: str, max_tokens: int, *options: str, name: str = "ideal") -> Peer:
    """The loop without any server around it; options are those of `ideal_loop.py`."""
    module = [sys.executable, "-m", "benchmarks.ideal_loop"]
    return Peer(name, [*module, folder, "--max-tokens", str(max_tokens), *options])


def vllm(python: str, folder: str, max_tokens: int, *options: str, name: str = "vllm") -> Peer:
    """VLLM, by its own Python, with options of `vllm_loop.py`. Raises PeerFailed: there is none."""
    script = Path(__file__).parent / "vllm_loop.py"
    try:
        # -P: this folder has an `http` of its own, which would hide the standard library's.
        command = [python, "-P", str(script), folder, "--max-tokens", str(max_tokens), *options]
        return Peer(name, command)
    except OSError as error:
        raise PeerFailed(f"--vllm-python {python}: {error.strerror}") from None
