"""Code of Python programs, compiled by the first instance of each and given to those that follow.

CPython takes 4 ms to compile a hundred lines inside Wasm, and 0.1 ms to read what it made of them.
"""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakSet

from pie_control.errors import ApiError
from pie_control.programs.store import Program

MAX_CHARACTERS = 32 << 20  # kept, of all programs


class CodeCache:
    """Code by the program's content and file name, for as long as the server runs.

    The code is the word of the Python runtime, never that of a program: an instance may keep code once,
    after it has asked for its program and was given none, and the runtime does so before the program
    runs. All instances of a server run in the same runtime, so that code is never of another version.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._characters = 0
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()  # by hash and file name
        self._asked: WeakSet[object] = WeakSet()  # instances that have asked, all that live
        self._expected: WeakSet[object] = WeakSet()  # those of them that were given none

    def find(self, instance: object, program: Program) -> str:
        """The code of an instance's program; empty if there is none, and `keep` is expected."""
        key = (program.hash, program.name)
        code = self._kept.get(key, "")
        if code:
            self._kept.move_to_end(key)
        elif instance not in self._asked:
            self._expected.add(instance)
        self._asked.add(instance)
        return code

    def keep(self, instance: object, program: Program, code: str) -> None:
        """Keeps the code of an instance's program; none if it is empty.

        Raises:
            ApiError: `invalid-argument` if it was not expected: a program asks, not the runtime.
        """
        if instance not in self._expected:
            raise ApiError("invalid-argument", "only the Python runtime keeps a program's code")
        self._expected.discard(instance)
        if not code or len(code) > self._max_characters:
            return
        key = (program.hash, program.name)
        self._characters += len(code) - len(self._kept.pop(key, ""))
        self._kept[key] = code
        while self._characters > self._max_characters:
            self._characters -= len(self._kept.popitem(last=False)[1])
