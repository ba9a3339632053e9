"""An RPC server in a thread, with real instances whose behaviour is a trio function, not Wasm.

So the transport is tested by itself, and a test can hold an instance exactly where it wants it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from pie_control.api.runtime import GuestClocks
from pie_control.confined.pool import ConfinedPool
from pie_control.durable.shelf import Shelf
from pie_control.errors import ApiError, ProgramRejected
from pie_control.instances.futures import FutureCount, FutureTable
from pie_control.instances.goals import Goals
from pie_control.instances.instance import Instance, InstanceEnded, InstanceState
from pie_control.instances.ledger import Ledger
from pie_control.instances.mailbox import Mailbox, MessageBytes
from pie_control.instances.result_store import ResultStore
from pie_control.instances.user_totals import Together, UserTotals
from pie_control.interception.policy_input import Durations
from pie_control.programs.store import Program, ProgramStore
from pie_control.rpc.auth import Users
from pie_control.rpc.requests import Requests
from pie_control.rpc.server import RpcServer
from pie_control.rpc.sessions import Timing
from pie_control.shares import Shares
from pie_py.config.limits import Limits, Quota
from pie_py.config.server import ServerConfig

Behaviour = Callable[[Instance], Awaitable[str]]

FAST = Timing(heartbeat=0.1, dead=0.6, resumable=30)


async def say(instance: Instance, message: str | bytes) -> None:
    """Sends as an inferlet does that waits for room."""
    while not instance.outbox.has_room:
        await instance.outbox.room()
    instance.outbox.put(message)


async def received(box: Mailbox[Any]) -> Any:
    """Waits for a message and takes it, as an inferlet does."""
    event = trio.Event()
    box.when_item(event.set)
    await event.wait()
    return box.pop()


async def count(instance: Instance) -> str:
    """Sends the numbers below the argument."""
    for i in range(int(instance.args[0])):
        await say(instance, str(i))
        if i % 50 == 0:
            await trio.lowlevel.checkpoint()
    return "counted"


async def echo(instance: Instance) -> str:
    """Sends every text back until `stop`."""
    while (text := await received(instance.texts)) != "stop":
        instance.log.add("info", text[:20])
        await say(instance, text)
    return "stopped"


async def echo_bytes(instance: Instance) -> str:
    """Sends one blob back."""
    blob = await received(instance.blobs)
    await say(instance, blob)
    return str(len(blob))


async def sleep(instance: Instance) -> str:
    """Does nothing."""
    await trio.sleep_forever()
    return ""


async def flood(instance: Instance) -> str:
    """Sends 16 KiB again and again, and counts in its arguments."""
    for i in itertools.count():
        await say(instance, bytes(16 << 10))
        instance.args[:] = [str(i + 1)]
        await trio.lowlevel.checkpoint()
    raise AssertionError


async def fail(instance: Instance) -> str:
    """Ends with its argument as the error."""
    raise ApiError("internal", "") if not instance.args else RuntimeError(instance.args[0])


BEHAVIOURS: dict[str, Behaviour] = {
    "count": count,
    "echo": echo,
    "echo_bytes": echo_bytes,
    "sleep": sleep,
    "flood": flood,
    "fail": fail,
}


class Behaviours:
    """Launches and ends instances, with the names that the RPC server uses of the lifecycle."""

    def __init__(self, config: ServerConfig, shares: Shares, nursery: trio.Nursery) -> None:
        self._config = config
        self._nursery = nursery
        self._numbers = itertools.count(1)
        self._all: dict[str, Instance] = {}
        self.launched = 0
        self.most = config.max_instances
        self.users = UserTotals(
            lambda user: Together(MessageBytes(1 << 30), FutureCount(1 << 20, 1 << 30))
        )
        shares.add("instances", self.most, self.users.alive)
        self.message_share = shares.add("bytes of messages", 1 << 30, self.users.messages)
        self.on_forget: list[Callable[[Instance], None]] = []

    @property
    def live_count(self) -> int:
        return sum(i.state is InstanceState.RUNNING for i in self._all.values())

    def memory_of(self, user: str) -> int:
        return sum(i.memory_bytes for i in self._all.values() if i.user == user)

    async def prepare(self, program: Program) -> None:
        if b"core" in Path(program.path).read_bytes():
            raise ProgramRejected("a core module, not a component")

    def can_start(self, program: Program) -> bool:
        return self.launched % 2 == 0  # both ways are tested

    async def until_can_start(self, program: Program) -> None:
        await trio.lowlevel.checkpoint()

    def start(
        self, program: Program, args: list[str], user: str, *, detached: bool = False
    ) -> Instance:
        number = next(self._numbers)
        instance = Instance(
            number,
            f"{program.name}-{number}",
            program,
            args,
            user,
            self._config.limits,
            FutureTable(self._config.limits, trio.current_time, lambda kind, seconds: None),
            time.time_ns,
        )
        self._all[instance.id] = instance
        self.users.add(instance)
        self.launched += 1
        if not detached:
            instance.client.left_at = trio.current_time()
        self._nursery.start_soon(self._run, instance)
        return instance

    async def _run(self, instance: Instance) -> None:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await instance.ended_event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                text = await BEHAVIOURS[instance.program.name](instance)
            except RuntimeError as error:
                self._end(instance, InstanceState.FAILED, str(error))
            else:
                self._end(instance, InstanceState.FINISHED, text)

    def _end(self, instance: Instance, state: InstanceState, text: str) -> None:
        if instance.state is InstanceState.RUNNING:
            instance.ended = InstanceEnded(state, text)
            self.users.remove(instance)
            instance.outbox.put(instance.ended, force=True)
            instance.ended_event.set()

    def kill(self, instance: Instance, reason: str) -> None:
        self._end(instance, InstanceState.KILLED, f"killed: {reason}")

    condemn = kill

    def instances(self, user: str | None = None, asleep: int = 0) -> list[Instance]:
        return [i for i in self._all.values() if user in (None, i.user)]

    def find(self, instance_id: str, user: str | None) -> Instance:
        instance = self._all.get(instance_id)
        if instance is None or (user is not None and instance.user != user):
            raise ApiError("not-found", f"no instance {instance_id!r}")
        return instance


class Bench:
    """The server, running between `start` and `stop`."""

    def __init__(
        self,
        folder: Path,
        endpoint: str = "tcp://127.0.0.1:*",
        timing: Timing = FAST,
        users: Users | None = None,
        **limits: Any,
    ) -> None:
        self._users = users
        self.config = ServerConfig(
            endpoint=endpoint,
            data_folder=folder,
            limits=Limits(**limits),
            admins=("boss",),
            program_bytes=64 << 20,
            quotas={"bob": Quota(share=0.01)},
        )
        self._timing = timing
        self._started: list[Any] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main)
        self.behaviours: Behaviours
        self.rpc: RpcServer
        self.endpoint = ""
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken

    def __enter__(self) -> Bench:
        self._thread.start()
        self._ready.wait()
        if isinstance(self._started[0], BaseException):
            self._thread.join()
            raise self._started[0]
        self.endpoint = self._started[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function, or a coroutine function, in the server's thread."""
        kind = trio.from_thread.run if _is_async(function) else trio.from_thread.run_sync
        return kind(function, *args, trio_token=self._token)

    def instance(self, instance_id: str) -> Instance:
        return self.behaviours.find(instance_id, None)

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._started.append(error)
        finally:
            self._ready.set()

    def _parts(self, programs: ProgramStore) -> Any:
        clock = trio.current_time
        ledger = Ledger(
            *(self.config.data_folder / "usage.sqlite3", {}, time.time_ns, tuple),
            *(lambda instance: 0.0, lambda instance, state, text: None),
        )
        return SimpleNamespace(
            registry=self.behaviours,
            launcher=self.behaviours,
            programs=programs,
            shares=self.shares,
            models=SimpleNamespace(
                services={}, names=[], kv_of=lambda instance: (0, 0), most_pages_of=lambda one: {}
            ),
            on_demand=SimpleNamespace(describe=dict),
            mcp=SimpleNamespace(registry=None),
            confined=ConfinedPool(self.config.confined),
            results=ResultStore(self.config.data_folder / "results", 0.0, time.time_ns),
            durable=SimpleNamespace(
                wants=lambda program: False,
                shelf=Shelf(Path(), lambda journal: None, time.time_ns),  # of no durable instance
            ),
            ledger=ledger,
            goals=Goals({}, Durations(), clock),
            clock=clock,
            clocks=GuestClocks(time.time_ns, time.time_ns),
        )

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                self.shares = Shares.of(self.config)
                self.behaviours = Behaviours(self.config, self.shares, nursery)
                programs = ProgramStore(self.config.data_folder / "programs", 4 << 20, time.time_ns)
                for name in BEHAVIOURS:
                    for user in ("local", "ann"):
                        programs.put(f"# {name}".encode(), name, "python", user)
                self.programs = programs
                methods = partial(Requests, self.config, self._parts(programs), list, dict, None)
                self.rpc = RpcServer(
                    *(self.config, self.shares, methods, trio.current_time, self._timing),
                    users=self._users,
                )
                self._started.append(await nursery.start(self.rpc.run))
                self._ready.set()


def _is_async(function: Callable[..., Any]) -> bool:
    import inspect

    return inspect.iscoroutinefunction(function)


class Proxy:
    """A TCP proxy in the bench's thread whose connections a test can cut."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._target = int(bench.endpoint.rpartition(":")[2])
        self._streams: list[trio.SocketStream] = []
        self.bytes_up = 0
        self.open = True
        self.connections = 0
        port = bench.call(self._listen)
        self.endpoint = f"tcp://127.0.0.1:{port}"

    async def _listen(self) -> int:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self._bench.nursery.start_soon(trio.serve_listeners, self._carry, listeners)
        port: int = listeners[0].socket.getsockname()[1]
        return port

    async def _carry(self, client: trio.SocketStream) -> None:
        if not self.open:
            await client.aclose()
            return
        self.connections += 1
        server = await trio.open_tcp_stream("127.0.0.1", self._target)
        self._streams += [client, server]
        async with client, server, trio.open_nursery() as nursery:

            async def pump(source: trio.SocketStream, target: trio.SocketStream) -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    async for data in source:
                        if source is client:
                            self.bytes_up += len(data)
                        await target.send_all(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(pump, client, server)
            nursery.start_soon(pump, server, client)

    def cut(self) -> None:
        """Breaks every connection."""

        def break_all() -> None:
            for stream in self._streams:
                stream.socket.close()
            self._streams.clear()

        self._bench.call(break_all)
