"""Calls of durable instances that reach outside: what is done again, and what never is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pie_control.api.http.functions import HttpClient
from pie_control.api.mcp.functions import McpServers
from pie_control.durable.waits import Call, durable_of, error_of
from pie_control.errors import ApiError
from pie_control.instances.durable import Opened
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.instances.turns import Executor
from pie_control.wasm.linker import SUSPENDED, HostFunction

FARTHEST_NS = (1 << 63) - 1  # a date that the journal has room for
REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})
CHANGES = frozenset({"store.store-set", "store.store-delete", "store.store-commit"})
# What they say may be in the journal.
SYNCED = CHANGES | {
    "http.http-get",
    "http.http-request",
    "mcp.mcp-list-tools",
    "mcp.mcp-call-tool",
}
INTERRUPTED = (
    "interrupted: the server crashed while this was under way, and whether it has taken effect is"
    " not known; it was not done again (durable.retry)"
)


class OutsideCalls:
    """Opens futures of something outside. What an earlier life was given is not asked again."""

    def __init__(
        self,
        http: HttpClient,
        mcp: McpServers,
        executor: Executor,
        date_ns: Callable[[], int],
        retry: bool,
    ) -> None:
        """Takes whether requests that may change something are made again after a crash, under
        the same `Idempotency-Key`.
        """
        self._http = http
        self._mcp = mcp
        self._executor = executor
        self._date_ns = date_ns
        self._retry = retry

    def tapped(self, function: HostFunction, kind: FutureKind) -> Call:
        """A function that opens a future of a kind."""
        name = function.full_name
        prepare = self._prepared(name, function.call)

        def begin(instance: Instance, call: Callable[[], int]) -> int:
            durable = durable_of(instance)
            try:
                handle = call()
            except ApiError as error:
                durable.failed(name, str(error))
                raise
            durable.opened[handle] = Opened(durable.open(), name)
            return handle

        def call(instance: Instance, *args: Any) -> Any:
            durable = durable_of(instance)
            before = durable.next_failure(name)
            if before is not None:
                raise error_of(before)
            if durable.coming_key in durable.past.taken:
                return begin(instance, partial(_resolved, instance, kind))
            ready, is_effect = prepare(instance, *args)
            if is_effect and not durable.journal.is_safe:
                self._when_safe(instance, partial(begin, instance, ready))
                return SUSPENDED
            return begin(instance, ready)

        return call

    def of_body(self, function: HostFunction) -> HostFunction:
        """The same function, which knows of bodies that went with an earlier life."""
        if function.name not in ("response-url", "close-body"):
            return function
        real, closes = function.call, function.name == "close-body"

        def call(instance: Instance, body: int) -> Any:
            bodies = durable_of(instance).bodies
            if body not in bodies:
                return real(instance, body)
            if not closes:
                raise ApiError("remote-failed", INTERRUPTED)
            bodies.discard(body)
            return None

        return replace(function, call=call)

    def lost_body(self, instance: Instance, body: int) -> None:
        """An answer came in an earlier life, and its body's connection went with that."""
        self._http.skip_body(instance)
        durable_of(instance).bodies.add(body)

    def _prepared(self, name: str, real: Call) -> Callable[..., tuple[Callable[[], int], bool]]:
        """The function that begins a call, and whether the journal must be on disk before."""

        def prepare(instance: Instance, *args: Any) -> tuple[Callable[[], int], bool]:
            durable = durable_of(instance)
            key = durable.coming_key
            match name:
                case "runtime.sleep":
                    now = self._date_ns()
                    due = durable.past.due.get(key)
                    if due is None:
                        due = min(now + args[0], FARTHEST_NS)
                        durable.journal.append("due", key, due)
                    return partial(real, instance, max(0, due - now)), False
                case "http.read-body" if args[0] in durable.bodies:
                    return partial(_interrupted, instance, FutureKind.BLOB), False
                case "http.http-post":
                    return self._once(
                        instance, FutureKind.RESPONSE, real, *self._keyed(instance, args, 1)
                    )
                case "http.http-request" if args[0].upper() not in REPEATABLE:
                    return self._once(
                        instance, FutureKind.RESPONSE, real, *self._keyed(instance, args, 2)
                    )
                case "mcp.mcp-call-tool" if not self._mcp.is_repeatable(instance, *args[:2]):
                    return self._once(instance, FutureKind.TEXT, real, *args)
            return partial(real, instance, *args), name in SYNCED

        return prepare

    def _once(
        self, instance: Instance, kind: FutureKind, real: Call, *args: Any
    ) -> tuple[Callable[[], int], bool]:
        """A request that may change something: the journal says that it leaves before it does."""
        durable = durable_of(instance)
        key = durable.coming_key
        if key in durable.past.begun and not self._retry:
            return partial(_interrupted, instance, kind), False
        durable.journal.append("begun", key)
        return partial(real, instance, *args), True

    def _keyed(self, instance: Instance, args: tuple[Any, ...], place: int) -> tuple[Any, ...]:
        """A request's arguments with the header that lets a server know a second try."""
        headers = args[place]
        if any(name.lower() == "idempotency-key" for name, _ in headers):
            return args
        key = f"{instance.id}-{durable_of(instance).coming_key}"
        return *args[:place], [*headers, ("Idempotency-Key", key)], *args[place + 1 :]

    def _when_safe(self, instance: Instance, begin: Callable[[], int]) -> None:
        """Goes on with a call of the guest, which is suspended, once the journal is on disk."""
        guest = instance.guest

        def answer() -> Any:
            try:
                return begin()
            except ApiError as error:
                return error

        def safe() -> None:
            if instance.guest is guest and not durable_of(instance).journal.is_lost:
                self._executor.answer_late(instance, answer)

        durable_of(instance).journal.when_safe(safe)


def _resolved(instance: Instance, kind: FutureKind) -> int:
    """A future whose value the journal has."""
    future = instance.futures.create(kind)
    future.resolve()
    return future.handle


def _interrupted(instance: Instance, kind: FutureKind) -> int:
    future = instance.futures.create(kind)
    future.fail(ApiError("remote-failed", INTERRUPTED))
    return future.handle
