"""Trait `store`: the user's persistent keys and values. Its operations are futures: ordered,
batched into transactions, in another thread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from pie_control.api.store.database import Database
from pie_control.api.store.entries import (
    OVERHEAD,
    Commit,
    Entries,
    Forget,
    Get,
    ListKeys,
    Operation,
    Result,
    StoreUnusable,
    Usage,
    weight,
)
from pie_control.errors import ApiError, exceeded, invalid, unsupported
from pie_control.instances.futures import FutureKind, wait_in
from pie_control.instances.instance import Instance
from pie_py.config.services import StoreConfig

if TYPE_CHECKING:
    from pie_control.instances.futures import Future
    from pie_control.instances.instance import Instance

log = structlog.get_logger("pie.store")

BATCH = 256  # operations of one transaction
MAX_KEY_BYTES = 1024
MAX_COMMIT_KEYS = 1000
MAX_LISTED = 1000

Pairs = list[tuple[str, bytes]]


@dataclass(slots=True, eq=False)
class _Request:
    """One operation of an instance, until its future is taken or given up."""

    instance: Instance
    operation: Operation | None  # None once it is given up
    future: Future
    held: int = 0  # bytes that it takes in memory


class StoreService:
    """The one door to the database.

    Operations of a user take effect in the order of the calls. Those that come while others are on
    their way to the disk share the next transaction; users take turns in it.
    """

    def __init__(self, path: Path, config: StoreConfig, *, of_all: bool = True) -> None:
        """Takes the file, and whether it is that of all instances of its users.

        A node of a cluster with a data folder of its own has no store, unless the configuration
        names a database: a user's other instances would not see what is in the file.
        """
        self._config = config
        self._of_all = of_all or bool(config.database)
        self._path = path
        self._pending: OrderedDict[str, deque[_Request]] = OrderedDict()  # by user
        self._held: dict[Instance, int] = {}  # bytes of requests and of results not yet taken
        self._waiting: dict[Instance, dict[Future, None]] = {}  # for room
        self._gone: list[str] = []  # durable instances whose calls are to be forgotten
        self._work = trio.Event()
        self._database: Entries | None = None  # until it is opened
        self._turn = trio.CapacityLimiter(1)

    async def bytes_of(self, user: str) -> int:
        """Bytes of a user's keys and values. Raises ApiError `internal`: the store has failed."""
        if self._database is None:
            return 0
        run = partial(self._database.run, [Usage(user)])
        [found] = await trio.to_thread.run_sync(run, limiter=self._turn)
        if isinstance(found, ApiError):
            raise found
        assert isinstance(found, int)
        return found

    def forget(self, instance: str) -> None:
        """A durable instance goes on no more: what is noted of its calls goes soon."""
        self._gone.append(instance)
        self._work.set()

    # Trait `store`

    def store_get(self, instance: Instance, key: str) -> int:
        """Opens a future of a key's value."""
        _check_key(key)
        return self._open(instance, FutureKind.BLOB, Get(instance.user, key))

    def store_set(self, instance: Instance, key: str, value: bytes) -> int:
        """Gives a key a value."""
        return self.store_commit(instance, [], [], [(key, value)], [])

    def store_delete(self, instance: Instance, key: str) -> int:
        """Removes a key, if it is there."""
        return self.store_commit(instance, [], [], [], [key])

    def store_list(self, instance: Instance, prefix: str, after: str, limit: int) -> int:
        """Opens a future of keys in order."""
        for text in (prefix, after):
            if len(text.encode()) > MAX_KEY_BYTES:
                raise invalid(f"no key has more than {MAX_KEY_BYTES} bytes")
        if not 0 < limit <= MAX_LISTED:
            raise invalid(f"{limit} keys asked for; 1 to {MAX_LISTED} are allowed")
        return self._open(instance, FutureKind.TEXTS, ListKeys(instance.user, prefix, after, limit))

    def store_commit(
        self,
        instance: Instance,
        expected: Pairs,
        absent: list[str],
        writes: Pairs,
        deletes: list[str],
    ) -> int:
        """Changes several keys at once, if others are as expected."""
        conditions = [*(key for key, _ in expected), *absent]
        changes = [*(key for key, _ in writes), *deletes]
        for keys in (conditions, changes):
            _check_keys(keys)
        for key, value in writes:
            limit = self._config.value_bytes
            if len(value) > limit:
                raise exceeded(
                    f"{key!r} would have {len(value)} bytes; {limit} at most: use several keys"
                )
        return self._open(
            instance,
            FutureKind.DONE,
            Commit(instance.user, tuple(expected), tuple(absent), tuple(writes), tuple(deletes)),
        )

    def store_room(self, instance: Instance) -> int:
        """Opens a future of room for an operation."""

        def begin(future: Future) -> None:
            if self._has_room(instance):
                future.resolve()
            else:
                wait_in(self._waiting, instance, future)

        return instance.futures.open(FutureKind.DONE, begin)

    def _open(self, instance: Instance, kind: FutureKind, operation: Operation) -> int:
        return instance.futures.open(kind, partial(self._submit, instance, operation))

    def _submit(self, instance: Instance, operation: Operation, future: Future) -> None:
        """Has the future resolved with the operation's result.

        A future that is cancelled before its operation has begun withdraws it.

        Raises:
            ApiError: `would-block` if the instance has too much under way; `unsupported` on a node
                of a cluster that does not share its store.
        """
        if not self._of_all:
            raise unsupported(
                "this node of the cluster does not share the store of the others, which needs a"
                " database (store.database in the configuration): launch near an instance that can"
                " use it"
            )
        if not self._has_room(instance):
            raise self._too_much(instance)
        if isinstance(operation, Commit) and instance.durable is not None:
            durable = instance.durable
            once, lease = (instance.id, durable.coming_key), durable.journal.lease
            operation = replace(operation, once=once, lease=lease)
        request = _Request(instance, operation, future)
        self._hold(request, _size(operation))
        future.on_cancel = partial(self._give_up, request)
        future.on_take = partial(self._hold, request, 0)
        self._pending.setdefault(instance.user, deque()).append(request)
        self._work.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Opens the database and serves until cancelled.

        Raises:
            StoreUnusable: if the file is damaged, or it or the database can't be opened.
        """
        limiter = self._turn
        database = await trio.to_thread.run_sync(_opened, self._path, self._config, limiter=limiter)
        self._database = database
        task_status.started()
        try:
            while True:
                await self._work.wait()
                self._work = trio.Event()
                while (batch := self._next_batch()) or self._gone:
                    gone, self._gone = [*map(Forget, self._gone)], []
                    run = partial(database.run, [*gone, *(operation for _, operation in batch)])
                    results = await trio.to_thread.run_sync(run, limiter=limiter)
                    self._gone += [each.instance for each in gone[len(results) :]]
                    self._answer(batch, results[len(gone) :])
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(database.close, limiter=limiter)

    def _next_batch(self) -> list[tuple[_Request, Operation]]:
        """The next operations, one of each user in turn."""
        batch: list[tuple[_Request, Operation]] = []
        while self._pending and len(batch) < BATCH:
            user, requests = self._pending.popitem(last=False)
            request = requests.popleft()
            if requests:
                self._pending[user] = requests
            if request.operation is not None:
                batch.append((request, request.operation))
        return batch

    def _answer(self, batch: list[tuple[_Request, Operation]], results: list[Result]) -> None:
        if any(isinstance(result, ApiError) and result.code == "internal" for result in results):
            log.error("the store has failed", path=str(self._path), problem=str(results[0]))
        for (request, _), result in zip(batch, results, strict=False):
            self._answer_one(request, result)
        for request, _ in reversed(batch[len(results) :]):
            user = request.instance.user
            self._pending.setdefault(user, deque()).appendleft(request)
            self._pending.move_to_end(user, last=False)

    def _answer_one(self, request: _Request, result: Result) -> None:
        if request.operation is None:  # cancelled meanwhile: its result is not taken
            return
        request.operation = None
        self._hold(request, 0)
        if isinstance(result, ApiError):
            request.future.fail(result)
            return
        size = weight(result)
        if size and not self._has_room(request.instance):
            request.future.fail(self._too_much(request.instance))
            return
        self._hold(request, size)
        request.future.resolve(result)

    def _give_up(self, request: _Request) -> None:
        request.operation = None
        self._hold(request, 0)

    def _hold(self, request: _Request, size: int) -> None:
        """Notes that a request takes so many bytes in memory from now on."""
        held = self._held.get(request.instance, 0) + size - request.held
        request.held = size
        if held:
            self._held[request.instance] = held
        else:
            self._held.pop(request.instance, None)
        if self._waiting and self._has_room(request.instance):
            for future in self._waiting.pop(request.instance, ()):
                future.resolve()

    def _has_room(self, instance: Instance) -> bool:
        """True if a value more may be held; the one that fills the room may go over it."""
        return self._held.get(instance, 0) < self._config.waiting_bytes

    def _too_much(self, instance: Instance) -> ApiError:
        return ApiError(
            "would-block",
            f"{self._held.get(instance, 0)} bytes of this instance are on their way to the store,"
            " or wait to be taken; take some, or wait for `store-room`",
        )


def _opened(path: Path, config: StoreConfig) -> Entries:
    """The file, or the database where one is named. Raises StoreUnusable if it can't be opened."""
    if not config.database:
        return Database(path, config)
    try:
        from pie_control.api.store.postgres import SharedDatabase
    except ImportError as error:
        raise StoreUnusable(
            f"store.database needs psycopg ({error}): pip install 'pie-py[cluster]'"
        ) from None
    return SharedDatabase(config)


def _size(operation: Operation) -> int:
    """Bytes that an operation takes in memory, about."""
    if not isinstance(operation, Commit):
        return OVERHEAD
    pairs = (*operation.expected, *operation.writes)
    keys = (*operation.absent, *operation.deletes)
    return (
        OVERHEAD
        + sum(len(key) + len(value) + OVERHEAD for key, value in pairs)
        + sum(len(key) + OVERHEAD for key in keys)
    )


def _check_keys(keys: list[str]) -> None:
    if len(keys) > MAX_COMMIT_KEYS:
        raise exceeded(f"{len(keys)} keys at once; {MAX_COMMIT_KEYS} at most a commit")
    seen: set[str] = set()
    for key in keys:
        _check_key(key)
        if key in seen:
            raise invalid(f"{key!r} is named twice in one commit")
        seen.add(key)


def _check_key(key: str) -> None:
    size = len(key.encode())
    if not 0 < size <= MAX_KEY_BYTES:
        raise invalid(f"a key of {size} bytes; 1 to {MAX_KEY_BYTES} are allowed")
