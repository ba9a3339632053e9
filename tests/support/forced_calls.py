"""`async_function_calling` with forced tokens: it writes given calls, through the whole pipeline.

Tests know the right calls, which a small model would not find by itself: the model
runs and chooses at every step, and then the script's token takes the place of the one chosen. When
a call is written, and in which order, follows from what it depends on and from the results that
have arrived, as a perfect model would have it (AsyncLM, section 4.1).

    --script '{"calls": [{"id": "a1", "call": "slow()"}, {"id": "b1", "call": "quick(x=1)",
               "after": ["a1"], "task": 0}], "closing": "Done."}'

A call is written when those in `after` have been delivered and the user's task number `task` has
come (an empty `id` expects no answer); of several, the first. Without a script the model chooses.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asynclm.calling.answering import answer, parse
from asynclm.calling.options import Mode
from asynclm.cml.dialect import TRAP_BLOCK, Dialect, call_block


async def main(args: list[str]) -> str:
    """As the library's, with the calls of `--script`."""
    options, parser = parse(args, script="JSON of calls to be written")
    try:
        script = _script(options)
    except ValueError as error:
        parser.error(str(error))
    return await answer(options, parser, script)


def _script(options: Namespace) -> Script | None:
    if options.script is None:
        return None
    try:
        found = json.loads(options.script)
    except ValueError as error:
        raise ValueError(f"--script is not JSON: {error}") from None
    mode = Mode(options.mode)
    return Script.from_json(
        found, most_a_turn=1 if mode is Mode.SYNC else None, asynchronous=mode is Mode.ASYNC
    )


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call to be written.

    Attributes:
        identifier: of the call, unique; empty if no answer is expected.
        text: the call.
        after: identifiers of calls whose results must have arrived before.
        task: number of the user's task that asks for it: 0 is the request, the next ones are the
            user's interrupts, in their order.
    """

    identifier: str
    text: str
    after: tuple[str, ...] = ()
    task: int = 0


class Script:
    """Decides what is written next.

    Attributes:
        calls: all calls.
    """

    def __init__(
        self,
        calls: Sequence[ScriptedCall],
        *,
        closing: str = "Done.",
        most_a_turn: int | None = None,
        asynchronous: bool = True,
    ) -> None:
        """Checks the calls.

        Args:
            calls: to be written.
            closing: the text at the end.
            most_a_turn: calls in a turn, for synchronous runs; None for all that are ready.
            asynchronous: whether it waits with traps, or by ending its turn.

        Raises:
            ValueError: two calls with one identifier, or one after a call that is not there.
        """
        self.calls = list(calls)
        names = [call.identifier for call in self.calls if call.identifier]
        known = set(names)
        if len(known) < len(names):
            raise ValueError("two calls of the script have the same identifier")
        for call in self.calls:
            if missing := set(call.after) - known:
                raise ValueError(f"{call.identifier} comes after {min(missing)}, which is no call")
        self._closing = closing
        self._most = most_a_turn
        self._asynchronous = asynchronous
        self._left = list(calls)  # not written
        self._waiting: set[str] = set()  # written, not arrived
        self._arrived: set[str] = set()
        self._tasks = 1  # that have been asked for
        self._in_turn = 0
        self._closed = False
        self._tokens: list[int] = []

    @classmethod
    def from_json(cls, found: Mapping[str, Any], **options: Any) -> Script:
        """A script from JSON: `{"calls": [...], "closing"}`.

        Each call is `{"id", "call", "after", "task"}`, see `ScriptedCall`.

        Raises:
            ValueError: it is something else.
        """
        try:
            calls = [
                ScriptedCall(
                    str(one["id"]),
                    str(one["call"]),
                    tuple(one.get("after", ())),
                    int(one.get("task", 0)),
                )
                for one in found["calls"]
            ]
            return cls(calls, closing=str(found.get("closing", "Done.")), **options)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no script: {type(error).__name__}: {error}") from None

    def arrived(self, identifier: str) -> None:
        """Notes that a call's result is in the context."""
        self._waiting.discard(identifier)
        self._arrived.add(identifier)
        self._reopen()

    def task_arrived(self) -> None:
        """Notes a further task of the user."""
        self._tasks += 1
        self._reopen()

    def next(self, dialect: Dialect, end: int) -> int:
        """The next token to be written.

        Args:
            dialect: how blocks are written.
            end: the token that ends a turn.
        """
        if not self._tokens:
            self._tokens = self._part(dialect, end)
        return self._tokens.pop(0)

    def _reopen(self) -> None:
        """There is something new to do, so closing words that are being written are given up."""
        if self._closed:
            self._closed = False
            self._tokens = []

    def _part(self, dialect: Dialect, end: int) -> list[int]:
        call = self._ready()
        if call is not None:
            self._left.remove(call)
            if call.identifier:
                self._waiting.add(call.identifier)
                self._in_turn += 1
            return dialect.encode_block(call_block(call.identifier, call.text))
        self._in_turn = 0
        if self._waiting:
            return dialect.encode_block(TRAP_BLOCK) if self._asynchronous else [end]
        if self._closed:
            return [end]
        self._closed = True
        return [*dialect.encode_text(self._closing), end]

    def _ready(self) -> ScriptedCall | None:
        is_full = self._most is not None and self._in_turn >= self._most
        for call in self._left:
            asked = call.task < self._tasks and self._arrived.issuperset(call.after)
            if asked and not (call.identifier and is_full):
                return call
        return None
