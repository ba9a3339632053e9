"""All instances: those that are alive, and the records of those that have ended lately."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import structlog
import trio

from pie_control.errors import ApiError, Shortage
from pie_control.fairness import Owner, Work
from pie_control.instances.aim import Aim
from pie_control.instances.ended import EndedInstances, PendingCleanup, loggable
from pie_control.instances.futures import FutureCount, FutureTable
from pie_control.instances.guest_memory import correct, of_users, too_much
from pie_control.instances.instance import Instance, InstanceEnded, InstanceState
from pie_control.instances.mailbox import MessageBytes
from pie_control.instances.user_totals import LaunchRates, Together, UserTotals
from pie_control.shares import Shares
from pie_py.config.limits import Limits
from pie_py.wire.rpc import LATER, MADE_WAY

if TYPE_CHECKING:
    from pie_control.programs.store import Program
    from pie_control.wasm.guest import Guest

log = structlog.get_logger("pie.instances")

LOG_BYTES = 16 << 10  # of the newest lines of one that sleeps

Hook: TypeAlias = Callable[[Instance], None]


class Registry:
    """Every instance from its start until its record is dropped.

    Parts with tables by instance add a hook: `on_start` when an instance is there,
    `on_drop` when what it holds goes (its guest and its futures are closed by then), because it has
    ended, or because a durable one begins another life; `on_end` when it has ended, behind these;
    `on_forget` when its record is dropped. Hooks are called in the order in which they were added,
    and raise nothing.
    """

    def __init__(
        self,
        most: int,
        message_bytes: int,
        futures: int,
        guest_memory: int,
        limits: Limits,
        shares: Shares,
        clock: Callable[[], float],
        date_ns: Callable[[], int],
        note_wait: Callable[[str, str, float], None],
        suffix: str = "",
    ) -> None:
        """Has no instance yet.

        Of message bytes, futures and guest memory, which are of all instances together, a user has
        a share. `note_wait` gets user, kind and seconds of each wait outside the server. `suffix`
        ends every id: in a cluster it names the node and its incarnation.
        """
        self.on_start: list[Hook] = []
        self.on_end: list[Hook] = []
        self.on_drop: list[Hook] = []
        self.on_forget: list[Hook] = []
        # Has something done a little later, at an owner's cost.
        self.do_later: Callable[[Owner, Work], None] = lambda owner, work: work()
        # Refuses a user's program whose budget is spent.
        self.check_budget: Callable[[str, str], None] = lambda user, program: None
        self.aim: Callable[[Instance], Aim] = lambda instance: instance.aim
        self.launched = 0
        self.most = most
        self._limits = limits
        self._quotas = shares.quotas
        self.guest_memory = guest_memory
        self.users = UserTotals(self._together)
        self._alive_share = shares.add("instances", most, self.users.alive)
        self._memory_share = shares.add(
            "bytes of memory",
            guest_memory,
            self.memory_of,
            partial(shares.quotas.memory, size=guest_memory),
        )
        self.message_share = shares.add("bytes of messages", message_bytes, self.users.messages)
        self._future_share = shares.add("futures", futures, self.users.futures)
        self._launches = LaunchRates(clock)
        self._clock = clock
        self._date_ns = date_ns
        self._note_wait = note_wait
        self._suffix = suffix
        self._numbers = itertools.count(1)
        self._random = random.Random()  # for names, which are no secrets
        self._live: dict[str, Instance] = {}
        self._asleep: dict[str, Instance] = {}
        self._closed: trio.Event | None = None  # set when the last instance has ended
        self._children: dict[Instance, set[Instance]] = {}  # live ones, of live parents
        self._cleanup = PendingCleanup(self._finish)
        self._ended = EndedInstances(self._forget)
        shares.add_lent("bytes of ended instances", self._ended.bytes_of)

    # Start

    def create(
        self,
        program: Program,
        args: list[str],
        user: str,
        *,
        parent: Instance | None = None,
        limits: Limits | None = None,
        instance_id: str | None = None,
        again: bool = False,
    ) -> Instance:
        """Makes an instance, which is alive once it is given to `add`. That which is there `again`
        is no launch of its user's, and may sleep or have ended: who has it live asks `check_room`
        before.

        Raises:
            Shortage: if too many are alive.
            ApiError: `limit-exceeded` if the user launches too many a second; `cancelled` if the
                parent has ended; `busy` if the server stops.
        """
        if parent is not None and parent.state is not InstanceState.RUNNING:
            raise ApiError("cancelled", "the parent instance has ended")
        if not again:
            self.check_room(user, parent)
            self.check_budget(user, program.name)
            self._launches.take(user, self._quotas.of(user).launches)
        limits = limits or self._limits
        together = self.users.together(user)
        instance = Instance(
            next(self._numbers),
            instance_id or self.new_id(program),
            program,
            args,
            user,
            limits,
            self._futures(user, limits),
            self._date_ns,
            parent,
            self._quotas.of(user),
            together.messages,
        )
        instance.aim = self.aim(instance)
        return instance

    def check_room(self, user: str, parent: Instance | None = None) -> None:
        """Refuses one more of a user that is alive. Raises ApiError, as `create`."""
        if self._closed is not None and parent is None:
            raise ApiError("busy", "the server is stopping and starts no more instances")
        self._cleanup.free_until(lambda: len(self._live) < self.most)
        if len(self._live) >= self.most:
            raise Shortage(f"{self.most} instances are alive, the most this server runs")
        self._cleanup.free_until(lambda: not self._alive_share.is_full(user), user)
        if self._alive_share.is_full(user):
            raise Shortage(
                f"you have {self._alive_share.most(user)} instances alive, the most that one user"
                " may have here"
            )
        self._check_memory(user)

    def _futures(self, user: str, limits: Limits) -> FutureTable:
        of_user = self.users.together(user).futures
        return FutureTable(limits, self._clock, partial(self._note_wait, user), of_user)

    def new_id(self, program: Program) -> str:
        """An id for an instance of a program, which a durable one has wherever it goes on."""
        return f"{program.name}-{self._random.getrandbits(32):08x}{self._suffix}"

    def _check_memory(self, user: str) -> None:
        """Starts none for a user with too much memory already."""
        most = self._memory_share.most(user)
        self._cleanup.free_until(lambda: self.users.memory_of(user) < most, user)
        held = self.users.memory_of(user)
        if held >= most:
            raise Shortage(
                f"your instances have taken {held >> 20} MiB of memory, and one user may have"
                f" {most >> 20} MiB here"
            )

    def check_memory(self, process_bytes: int) -> None:
        """Ends instances for whose memory there is no room; takes how much this process has.

        What instances hold that have ended is freed before.
        """
        correct(self._holding(), process_bytes)
        while True:
            # The end of one is that of its children: those would be found again and again.
            self._cleanup.free_until(lambda: self._too_much() is None)
            found = self._too_much()
            if found is None:
                break
            instance, most = found
            self.fail(
                instance,
                f"limit-exceeded: it has taken {instance.memory_bytes >> 20} MiB of memory, the"
                f" most of your instances, which together have more than {most >> 20} MiB"
                f" (quota.memory, guest_memory){LATER}",
            )
        self.users.memory.clear()
        for instance in self._holding():
            self.users.memory[instance.user] += instance.guest_bytes

    def _too_much(self) -> tuple[Instance, int] | None:
        return too_much(self._holding(), self._quotas, self.guest_memory)

    def _together(self, user: str) -> Together:
        messages, futures = self.message_share.most(user), self._future_share.most(user)
        memory = self._memory_share.most(user)
        return Together(MessageBytes(messages), FutureCount(futures, memory))

    def add(self, instance: Instance) -> None:
        """An instance is alive from now on."""
        self._live[instance.id] = instance
        self.users.add(instance)
        self._begins(instance)

    def add_asleep(self, instance: Instance) -> None:
        """A durable instance sleeps since an earlier life of the server."""
        self._asleep[instance.id] = instance
        self.users.sleeps(instance)
        self._begins(instance)

    def _begins(self, instance: Instance) -> None:
        if instance.parent is not None:
            self._children.setdefault(instance.parent, set()).add(instance)
        self.launched += 1
        self._start(instance)

    def put_away(self, instance: Instance) -> None:
        """A durable instance loses what it holds, and is not alive until `rouse`."""
        self._asleep[instance.id] = self._live.pop(instance.id)
        self.users.sleeps(instance)
        self.users.remove(instance)
        self.begin_again(instance)
        instance.timeline.drop()
        instance.log.shrink(LOG_BYTES)
        if self._closed is not None and not self._awaited:
            self._closed.set()

    def rouse(self, instance: Instance) -> None:
        """An instance that sleeps is alive again, without a guest."""
        self._live[instance.id] = self._asleep.pop(instance.id)
        self.users.wakes(instance)

    def _start(self, instance: Instance) -> None:
        for hook in self.on_start:
            hook(instance)

    def add_ended(self, instance: Instance) -> None:
        """A durable instance has ended in an earlier life of the server: its record is there."""
        assert instance.ended is not None
        instance.outbox.put(instance.ended, force=True)
        instance.close_inbox()
        instance.ended_event.set()
        self._ended.keep(instance)

    # End

    def end(self, instance: Instance, state: InstanceState, text: str) -> None:
        """Ends an instance: frees all it owned, answers its client, ends its children. Idempotent.

        What its children owned is freed soon.
        """
        if instance.state is InstanceState.RUNNING:
            self._mark_ended(instance, state, text)
            self._cleanup.free(instance)

    def _mark_ended(self, instance: Instance, state: InstanceState, text: str) -> None:
        if instance.id in self._asleep:
            self.rouse(instance)
        instance.ended = InstanceEnded(state, text, self._date_ns(), instance.cpu_ns)
        self._cleanup.add(instance)
        for child in self._children.pop(instance, ()):
            self.condemn(child, "its parent has ended")

    def _finish(self, instance: Instance, guest: Guest | None) -> None:
        """Frees what an instance that has ended owned."""
        if instance.parent is not None:
            self._children.get(instance.parent, set()).discard(instance)
        self._drop(instance, guest)
        if instance.durable is not None and instance.ended is not None:
            instance.durable.end(instance.ended)
        for hook in self.on_end:
            hook(instance)
        if instance.durable is not None:
            instance.durable.journal.when_safe(partial(self._settle, instance))
        else:
            self._settle(instance)

    def _drop(self, instance: Instance, guest: Guest | None) -> None:
        if guest is not None:
            guest.close()
        instance.futures.close()
        for hook in self.on_drop:
            hook(instance)

    def begin_again(self, instance: Instance) -> None:
        """A durable instance loses what it holds, and begins another life once it has a guest."""
        guest, instance.guest = instance.guest, None
        self._drop(instance, guest)
        instance.begin_again(self._futures(instance.user, instance.limits))
        self._start(instance)

    def _settle(self, instance: Instance) -> None:
        """Announces an instance's end, and makes its record; none if it goes on at another node."""
        assert instance.ended is not None
        state, text = instance.ended.state, instance.ended.text
        moved = instance.durable is not None and instance.durable.journal.is_lost
        if not moved:
            instance.outbox.put(instance.ended, force=True)
        instance.close_inbox()
        instance.outbox.leave_user()
        instance.ended_event.set()
        del self._live[instance.id]
        if self._closed is not None and not self._awaited:
            self._closed.set()
        self.users.remove(instance)
        if moved:
            self._forget(instance)
            return
        instance.timeline.pack()
        self._ended.keep(instance)
        if state is InstanceState.FAILED:
            why = loggable(text)
            log.info("instance failed", instance=instance.id, user=instance.user, reason=why)

    def fail(self, instance: Instance, reason: str) -> None:
        """Ends an instance for a fault that is not its own."""
        self.end(instance, InstanceState.FAILED, reason)

    def kill(self, instance: Instance, reason: str) -> None:
        """Ends an instance from outside."""
        self.end(instance, InstanceState.KILLED, f"killed: {reason}")

    def condemn(self, instance: Instance, reason: str) -> None:
        """As `kill`: it does nothing more from now on, and what it owned is freed soon.

        That takes long where its guest is in the middle of a call with much data, and half a
        second for a tree of a thousand instances. Others have turns in between.
        """
        if instance.state is InstanceState.RUNNING:
            self._mark_ended(instance, InstanceState.KILLED, f"killed: {reason}")
            self.do_later(instance.owner, partial(self._cleanup.free, instance))

    def reclaim(self, victims: Iterable[Instance], enough: Callable[[], bool]) -> bool:
        """First come, first served (Pie, section 5.2): ends victims in turn until `enough` says so.

        Returns whether there is enough now.
        """
        for victim in victims:
            if enough():
                break
            self.end(victim, InstanceState.KILLED, f"out-of-resources: {MADE_WAY}")
            self._cleanup.free(victim)  # it may have ended before
        return enough()

    def close(self) -> trio.Event:
        """Starts no more instances. Returns what is set once those that live have ended."""
        self._closed = trio.Event()
        if not self._awaited:
            self._closed.set()
        return self._closed

    @property
    def is_closed(self) -> bool:
        """True once no more instances are started."""
        return self._closed is not None

    @property
    def _awaited(self) -> bool:
        """True if instances live for which a server that stops waits."""
        return any(instance.durable is None for instance in self._live.values())

    def end_all(self, reason: str) -> None:
        """Ends every instance: the server stops."""
        for instance in list(self._live.values()):
            if instance.durable is None:  # the others go on when a server is there again
                self.kill(instance, reason)
                self._cleanup.free(instance)

    def lose_all(self, reason: str) -> None:
        """Ends every instance for a fault that is not its own, but durable ones."""
        for instance in list(self._live.values()):
            if instance.durable is None:
                self.fail(instance, reason)
                self._cleanup.free(instance)

    async def sweep(self) -> None:
        """Ends instances whose client has been gone too long, and drops messages that no client
        fetches, until cancelled."""
        while True:
            await trio.sleep(1.0)
            now = self._clock()
            for instance in list(self.everyone):
                since, seconds = instance.client.left_at, instance.limits.detached_seconds
                if since is None or now - since <= seconds:
                    continue
                instance.client.left_at = None
                if instance.state is InstanceState.RUNNING:
                    self.condemn(instance, f"its client has been gone for {seconds:g} s")
                else:
                    instance.outbox.drop(but=1)

    # Records

    def _forget(self, instance: Instance) -> None:
        for hook in self.on_forget:
            hook(instance)

    def instances(self, user: str | None = None, asleep: int | None = None) -> list[Instance]:
        """Live instances and those ended lately, by launch; at most so many `asleep`, or all."""

        def of_user(some: Iterable[Instance]) -> Iterator[Instance]:
            return (each for each in some if user is None or each.user == user)

        sleepers = itertools.islice(of_user(reversed(self._asleep.values())), asleep)
        return sorted([*of_user(self.everyone), *sleepers], key=lambda each: each.number)

    def live(self) -> list[Instance]:
        """Those that have not ended, without those that sleep."""
        return [each for each in self._live.values() if each.ended is None]

    @property
    def everyone(self) -> Iterator[Instance]:
        """As `instances`, of all users and in no order, without those that sleep."""
        return itertools.chain(self._ended, self._live.values())

    def forget(self, instance_id: str) -> None:
        """Drops the record of an instance that has ended, if there is one."""
        self._ended.forget(instance_id)

    def knows(self, instance_id: str) -> bool:
        """True if an instance of this id is alive, or has ended lately."""
        return self._find(instance_id) is not None

    def _find(self, instance_id: str) -> Instance | None:
        for table in (self._live, self._asleep):
            if (found := table.get(instance_id)) is not None:
                return found
        return self._ended.find(instance_id)

    def find(self, instance_id: str, user: str | None) -> Instance:
        """An instance of a user, alive or ended lately. Raises ApiError `not-found`."""
        instance = self._find(instance_id)
        if instance is None or (user is not None and instance.user != user):
            raise ApiError(
                "not-found", f"no instance {instance_id!r} of yours is alive or ended lately"
            )
        return instance

    def _holding(self) -> list[Instance]:
        """Instances that may have memory."""
        live = self._live.values()
        return [i for i in live if i.state is InstanceState.RUNNING or i in self._cleanup]

    @property
    def live_count(self) -> int:
        """Instances alive; of a server that stops, those that it waits for."""
        if self._closed is None:
            return len(self._live)
        return sum(instance.durable is None for instance in self._live.values())

    def memory_of(self, user: str) -> int:
        """Bytes of memory that the instances of a user have taken together, about."""
        return of_users(self._holding())[user]

    def children_of(self, instance: Instance) -> int:
        """Children of an instance that are alive."""
        return len(self._children.get(instance, ()))
