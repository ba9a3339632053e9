"""Records of programs' calls of the API and their answers, a file for each instance.

`pie_py.wire.record` is the form.
"""

from __future__ import annotations

import base64
import json
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import structlog

from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_control.wasm import SUSPENDED, U8_LIST, HostFunction, List, Tuple, Type
from pie_control.wasm.engine import TABLE_ELEMENTS
from pie_control.wasm.linker import HostCalls, failure_text, turn
from pie_py import __version__
from pie_py.build.runtimes import RUNTIMES
from pie_py.config.services import RecordingConfig
from pie_py.wire.record import FORMAT

log = structlog.get_logger("pie.recording")

RECORD_BYTES = 256 << 20  # of one instance


def text_of(value: Any) -> str:
    """A value as a record has it; equal values have equal texts."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def call_line(name: str, args: str, ms: float, what: str, value: Any) -> str:
    """The line of a call: its arguments, as `text_of` made them, and what came of it."""
    return f'{{"call":"{name}","args":{args},"{what}":{text_of(value)},"ms":{ms}}}\n'


def typed(value: Any, of: Type | None) -> Any:
    """A value of a record as the contract's type wants it."""
    if of is None:
        return None
    if of == U8_LIST:
        return base64.b64decode(value)
    match of:
        case List(element):
            return [typed(one, element) for one in value]
        case Tuple(elements):
            pairs = zip(value, elements, strict=True)
            return tuple(typed(one, element) for one, element in pairs)
    return value


def _plain(value: Any) -> Any:
    """A value that JSON has no form for, in a form that it has."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value.tolist()  # arrays and numbers of NumPy, and Python's own arrays


class Recorder:
    """The records of all instances.

    Calls that a warm instance makes before it has a program come first in the record of its
    instance: what they gave is in the guest's memory.
    """

    def __init__(
        self, config: RecordingConfig, cache_folder: Path, clock: Callable[[], float]
    ) -> None:
        """Takes the server's cache folder, where the Python runtime is, and a clock in seconds."""
        assert config.folder is not None
        self._folder = config.folder
        self._most = RECORD_BYTES
        self._cache_folder = cache_folder
        self._clock = clock
        self._tapes: weakref.WeakKeyDictionary[HostCalls, _Tape] = weakref.WeakKeyDictionary()
        self._open: dict[Instance, _Tape] = {}
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def tap(self, functions: Sequence[HostFunction]) -> tuple[HostFunction, ...]:
        """The same functions, whose calls are recorded."""
        return tuple(replace(one, call=self._tapped(one)) for one in functions)

    def finish(self, instance: Instance) -> None:
        """An instance has ended: so does its record."""
        tape = self._open.pop(instance, None)
        if tape is not None and instance.ended is not None:
            tape.finish(instance.ended.state.value, instance.ended.text)

    def _tapped(self, function: HostFunction) -> Callable[..., Any]:
        call, name = function.call, f"{function.interface}.{function.name}"

        def recorded(state: Any, *args: Any) -> Any:
            guest = turn.guest
            assert guest is not None, "guests call"
            tape = self._tape(guest, state)
            tape.ask(name, args)
            try:
                value = call(state, *args)
            except Exception as error:
                tape.answer(failure_text(name, error), failed=True)
                raise
            if value is SUSPENDED:
                guest.on_answer = partial(_answer, tape)
            else:
                tape.answer(value)
            return value

        return recorded

    def _tape(self, guest: HostCalls, state: Any) -> _Tape:
        tape = self._tapes.get(guest)
        if tape is None:
            tape = self._tapes[guest] = _Tape(self._clock, self._most)
        if isinstance(state, Instance) and state not in self._open:
            self._open[state] = tape
            tape.open(self._folder / f"{state.id}.jsonl", self._head(state, warm=tape.begun))
        return tape

    def _head(self, instance: Instance, *, warm: bool) -> dict[str, Any]:
        program, limits = instance.program, instance.limits
        head = {
            "record": FORMAT,
            "pie_py": __version__,
            "instance": instance.id,
            "parent": None if instance.parent is None else instance.parent.id,
            "user": instance.user,
            "program": program.name,
            "hash": program.hash,
            "kind": program.kind,
            "args": instance.args,
            "warm": warm,
            "cpu_seconds": limits.cpu_seconds,
            "memory": limits.memory,
            "table_elements": TABLE_ELEMENTS,
        }
        if program.kind in RUNTIMES:  # its source is what `source.read` gave
            head["runtime"] = RUNTIMES[program.kind].runtime_file(self._cache_folder).name
        else:
            head["component"] = base64.b64encode(Path(program.path).read_bytes()).decode()
        return head


def _answer(tape: _Tape, value: Any) -> None:
    """Records the answer that a suspended call is given at last."""
    if isinstance(value, ApiError):
        tape.answer(str(value), failed=True)
    else:
        tape.answer(value)


class _Tape:
    """The record of one instance under way; nothing that goes wrong with it ends the instance."""

    def __init__(self, clock: Callable[[], float], most: int) -> None:
        self._clock = clock
        self._began = clock()
        self._left = most
        self._before: list[str] = []  # lines of a guest that has no instance yet
        self._file: TextIO | None = None
        self._asked: tuple[str, str, float] | None = None  # a call under way
        self._over = False

    @property
    def begun(self) -> bool:
        """True if it has lines."""
        return bool(self._before)

    def open(self, path: Path, head: dict[str, Any]) -> None:
        """It is the record of an instance from now on."""
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            self._file = open(number, "w", encoding="utf-8", errors="surrogatepass")  # noqa: SIM115
        except OSError as error:
            self._give_up(error)
            return
        before, self._before = self._before, []
        for text in (f"{text_of(head)}\n", *before):
            self._write(text)

    def ask(self, name: str, args: tuple[Any, ...]) -> None:
        """A call begins."""
        ms = round((self._clock() - self._began) * 1000, 3)
        try:
            # Written now: the function may keep the arguments, and change them.
            self._asked = (name, text_of(args), ms)
        except Exception as error:
            self._give_up(error)

    def answer(self, value: Any, *, failed: bool = False) -> None:
        """The call has its answer."""
        self._end_call("fails" if failed else "gives", value)

    def finish(self, state: str, text: str) -> None:
        """The instance has ended."""
        self._end_call("open", True)
        self._write(_end_line(state, text))
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)
            self._file = None

    def _end_call(self, what: str, value: Any) -> None:
        if self._asked is not None:
            try:
                self._write(call_line(*self._asked, what, value))
            except Exception as error:  # a value without a form is our fault, not the program's
                self._give_up(error)
            self._asked = None

    def _write(self, text: str) -> None:
        if self._over:
            return
        if self._file is None:
            self._before.append(text)
            return
        self._left -= len(text)
        try:
            if self._left < 0:
                self._over = True
                text = _end_line("cut", f"the record is full: it has {RECORD_BYTES} bytes at most")
            self._file.write(text)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._over = True
        log.warning("a record cannot be written", reason=f"{type(error).__name__}: {error}")


def _end_line(state: str, text: str) -> str:
    return f"{text_of({'end': state, 'text': text})}\n"
