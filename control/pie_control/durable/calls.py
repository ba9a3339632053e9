"""The functions of the contract as durable instances call them: written down, and made again.

Functions that give nothing of the world (pages, forwards, samplers, grammars) are called in each
life of an instance. So what it has at the model is rebuilt by the code that built it at first,
with the tokens that were chosen then. Of the others the journal has the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from pie_control.durable.outside import OutsideCalls
from pie_control.durable.waits import (
    Call,
    answer_of,
    durable_of,
    error_of,
    note_answer,
    noted,
    quiet,
    until,
)
from pie_control.errors import ApiError, unsupported
from pie_control.instances.durable import Opened
from pie_control.instances.futures import TAKERS, FutureKind
from pie_control.instances.instance import Instance
from pie_control.journal.past import SENDS
from pie_control.journal.past import Call as PastCall
from pie_control.wasm.linker import HostFunction

# Their answers are the world's.
ANSWERED = frozenset(
    {
        "runtime.instance-id",
        "runtime.version",
        "runtime.available-models",
        "runtime.available-traits",
        "runtime.model-info",
        "runtime.now",
        "runtime.random-bytes",
        "mcp.mcp-servers",
        "allocate.pool-stats",
        "allocate.list-exports",
        "adapter.available-adapters",
        "adapter.weights-version",
        "offload.kv-costs",
        "offload.advise",
        "sample.run-versions",
        "sample.run-logprobs",  # another batch may round them otherwise
        "tokenize.apply-chat-template",  # a template may tell the date
        "http.response-url",
        "http.close-body",
    }
)

# They open futures of what the server computes.
COMPUTED = frozenset(
    {
        "runtime.synchronize",
        "sample.sample",
        "sample.sample-masked",
        "sample.step",
        "sample.run-progress",
        "sample.run-text",
        "sample.read-state",
        "output-text.get-next-dist",
        "output-text.get-hidden",
        "introspect.forward-with-attention",
        "encode.encode",
        "grammar.compile-grammar",
        "grammar.sample-constrained",
    }
)
QUIET_TAKES = frozenset({"runtime.synchronize", "sample.run-progress", "grammar.compile-grammar"})

# They open futures of something outside.
OUTSIDE = {
    "runtime.sleep": FutureKind.DONE,
    "runtime.launch": FutureKind.TEXT,
    "session.writable": FutureKind.DONE,
    "session.receive": FutureKind.TEXT,
    "session.receive-blob": FutureKind.BLOB,
    "store.store-get": FutureKind.BLOB,
    "store.store-set": FutureKind.DONE,
    "store.store-delete": FutureKind.DONE,
    "store.store-list": FutureKind.TEXTS,
    "store.store-room": FutureKind.DONE,
    "store.store-commit": FutureKind.DONE,
    "http.http-get": FutureKind.RESPONSE,
    "http.http-post": FutureKind.RESPONSE,
    "http.http-request": FutureKind.RESPONSE,
    "http.read-body": FutureKind.BLOB,
    "messaging.next-message": FutureKind.TEXT,
    "messaging.pull": FutureKind.TEXT,
    "messaging.broadcast-room": FutureKind.DONE,
    "messaging.push-room": FutureKind.DONE,
    "mcp.mcp-list-tools": FutureKind.TEXT,
    "mcp.mcp-call-tool": FutureKind.TEXT,
}


Tapped: TypeAlias = Callable[[HostFunction], Call]


class DurableCalls:
    """Makes the functions of durable instances from those of the others."""

    def __init__(
        self, outside: OutsideCalls, special: Mapping[str, Tapped], *, has_messages: bool
    ) -> None:
        """Takes what makes some of them, by name, and whether what is told to others is kept."""
        self._outside = outside
        self._has_messages = has_messages
        self._special: dict[str, Tapped] = {
            "runtime.wait": _wait,
            "runtime.cancel": _cancel,
            "runtime.monotonic-now": _monotonic,
            "prefix-cache.match-prefix": _match_prefix,
            **special,
        }

    def tap(self, functions: Sequence[HostFunction]) -> tuple[HostFunction, ...]:
        """The functions for the linker of durable instances."""
        return tuple(self._tapped(function) for function in functions)

    def _tapped(self, function: HostFunction) -> HostFunction:
        if function.interface == "source":
            return function
        name = function.full_name
        if not self._has_messages and (
            function.interface == "messaging" or name == "runtime.launch"
        ):
            return replace(function, call=_refused(function))
        if name in self._special:
            call = self._special[name](function)
        elif name in ANSWERED:
            call = answered(self._outside.of_body(function))
        elif name in SENDS:
            call = _sends(function)
        elif name in COMPUTED:
            call = _computed(function)
        elif name in OUTSIDE:
            call = self._outside.tapped(function, OUTSIDE[name])
        elif function.name in TAKERS:
            call = _Take(function, TAKERS[function.name], self._outside)
        else:
            call = quiet(function)
        return replace(function, call=call, suspends=True)


def _refused(function: HostFunction) -> Call:
    name = function.full_name

    def refused(instance: Instance, *args: Any) -> Any:
        raise unsupported(
            f"a durable instance cannot call `{name}` in a cluster: what others have in the memory"
            " of a node is gone after a crash"
        )

    return quiet(replace(function, call=refused)) if function.fallible else refused


def answered(function: HostFunction) -> Call:
    """A call whose answer is the journal's."""
    real, name, result = function.call, function.full_name, function.result

    def call(instance: Instance, *args: Any) -> Any:
        durable = durable_of(instance)
        before = durable.next_call(name)
        if before is not None:
            return answer_of(before.ok, before.value, result)
        return noted(partial(note_answer, instance, name, None), real, instance, *args)

    return call


def _monotonic(function: HostFunction) -> Call:
    """A clock that never goes back, also over lives of the machine."""
    real = function.call

    def now(instance: Instance) -> int:
        durable = durable_of(instance)
        durable.clock_ns = max(durable.clock_ns, real(instance))
        return durable.clock_ns

    asked = answered(replace(function, call=now))

    def call(instance: Instance) -> Any:
        value = asked(instance)
        durable_of(instance).clock_ns = value
        return value

    return call


def _match_prefix(function: HostFunction) -> Call:
    """No future: whether others compute a prefix at the moment is different in each life."""
    real = function.call

    def match(instance: Instance, *args: Any) -> Any:
        spans, future = real(instance, *args)
        if future:
            instance.futures.cancel(future)
        return spans, 0

    return quiet(replace(function, call=match))


def _sends(function: HostFunction) -> Call:
    """A message to the client. Those of earlier lives are in its outbox already."""
    real, name = function.call, function.full_name

    def sent(instance: Instance, message: Any, value: Any) -> None:
        failed = isinstance(value, ApiError)
        note_answer(instance, name, None, value if failed else message)
        if not failed:
            durable_of(instance).says()

    def call(instance: Instance, message: Any) -> None:
        durable = durable_of(instance)
        before = durable.next_call(name)
        if before is not None:
            if before.ok and before.value != message:
                raise durable.departs(name, why="the message is another one")
            answer_of(before.ok, before.value, None)
            return
        noted(partial(sent, instance, message), real, instance, message)

    return call


def _computed(function: HostFunction) -> Call:
    """Opens a future of what this server computes, in each life."""
    asked, name = quiet(function), function.full_name

    def opened(instance: Instance, handle: Any) -> None:
        if not isinstance(handle, ApiError):
            durable = durable_of(instance)
            durable.opened[handle] = Opened(durable.open(), name, is_computed=True)

    def call(instance: Instance, *args: Any) -> Any:
        return noted(partial(opened, instance), asked, instance, *args)

    return call


def _cancel(function: HostFunction) -> Call:
    asked, name = quiet(function), function.full_name

    def call(instance: Instance, future: int) -> None:
        durable = durable_of(instance)
        found = durable.opened.pop(future, None)
        if found is not None and not found.is_computed:
            if durable.next_call(name, found.key) is None:
                durable.called(name, found.key, None)
            instance.futures.cancel(future)
        else:
            asked(instance, future)

    return call


def _wait(function: HostFunction) -> Call:
    """A wait for one future gives nothing to write down; of several the journal has which."""
    real, asked, name = function.call, quiet(function), function.full_name

    def note(instance: Instance, futures: list[int], ready: Any) -> None:
        if not isinstance(ready, ApiError):
            durable_of(instance).called(name, None, [futures.index(one) for one in ready])

    def call(instance: Instance, futures: list[int]) -> Any:
        durable = durable_of(instance)
        if durable.goes_over and all(one in durable.opened for one in futures):
            if len(futures) == 1:
                failure = durable.next_failure(name)
                if failure is not None:
                    raise error_of(failure)
                return _ready(instance, futures)
            if futures and (before := durable.next_call(name)) is not None:
                return _ready(instance, [futures[place] for place in before.value])
        if len(futures) < 2:
            return asked(instance, futures)
        return noted(partial(note, instance, futures), real, instance, futures)

    return call


def _ready(instance: Instance, futures: list[int]) -> Any:
    """Futures that the past calls ready. What this server computes is waited for."""
    durable = durable_of(instance)
    durable.promised.update(futures)
    computed = [one for one in futures if durable.opened[one].is_computed]
    return until(instance, computed, lambda: futures)


class _Take:
    """Consumes a future: what it gives is the journal's, unless it gives nothing."""

    def __init__(self, function: HostFunction, kind: FutureKind, outside: OutsideCalls) -> None:
        self._real, self._name, self._result = function.call, function.full_name, function.result
        self._asked = quiet(function)
        self._kind = kind
        self._outside = outside

    def __call__(self, instance: Instance, future: int) -> Any:
        durable = durable_of(instance)
        found = durable.opened.get(future)
        if found is None or found.maker in QUIET_TAKES:
            ready = partial(self._asked, instance, future)
            is_next = durable.goes_over and durable.past.calls[0].name == self._name
            if found is not None and durable.goes_over and not is_next:
                return until(instance, [future], ready)
            return ready()
        failure = durable.next_failure(self._name)
        if failure is not None:
            raise error_of(failure)
        before = durable.next_call(found.maker, found.key)
        if before is not None:
            durable.opened.pop(future)
            waited = [future] if found.is_computed else []
            return until(instance, waited, partial(self._again, instance, future, found, before))
        waited = [future] if future in durable.promised else []
        return until(instance, waited, partial(self._now, instance, future, found))

    def _again(self, instance: Instance, future: int, found: Opened, before: PastCall) -> Any:
        """The value that the future gave in an earlier life."""
        if found.is_computed:
            self._compute(instance, future, found, before)
        else:
            instance.futures.cancel(future)
            if self._kind is FutureKind.RESPONSE and before.ok:
                self._outside.lost_body(instance, before.value[2])
        return answer_of(before.ok, before.value, self._result)

    def _compute(self, instance: Instance, future: int, found: Opened, before: PastCall) -> None:
        """Consumes the future of this life, which gives the same."""
        durable, chosen = durable_of(instance), (FutureKind.SAMPLE, FutureKind.RUN_TEXT)
        try:
            value = self._real(instance, future)
        except ApiError as error:
            if before.ok:
                raise durable.departs(found.maker, found.key, f"it fails now: {error}") from None
            return
        if self._kind in chosen and before.ok and value[0] != before.value[0]:
            why = f"the model chose {value[0]!r:.100}, not {before.value[0]!r:.100}"
            raise durable.departs(found.maker, found.key, why)

    def _now(self, instance: Instance, future: int, found: Opened) -> Any:
        durable = durable_of(instance)
        try:
            value = self._real(instance, future)
        except ApiError as error:
            if instance.futures.find(future) is not None:  # it is not ready, or of another kind
                durable.failed(self._name, str(error))
            else:
                durable.opened.pop(future)
                durable.called(found.maker, found.key, str(error), ok=False)
            raise
        durable.opened.pop(future)
        durable.promised.discard(future)
        durable.called(found.maker, found.key, value)
        return value
