"""Limits of one instance, and quotas of one user."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from pie_py.config.keys import LOCAL_USER
from pie_py.config.section import Section


class Limits(Section):
    """The limits of one instance. A breach ends it with a named error."""

    memory: PositiveInt = 256 << 20  # bytes of linear memory; as many of results not yet taken
    cpu_seconds: PositiveFloat = 60.0  # time on the control thread, all slices together
    wall_seconds: PositiveFloat = 3600.0  # life, from launch
    kv_pages: PositiveInt | None = None  # pages held; the pool by default
    host_pages: PositiveInt | None = None  # swapped pages held; the pool by default
    embeds: PositiveInt | None = None  # embeds held; the pool by default
    # Most likely tokens of a distribution that it may see (Pie, section 8), and then no hidden
    # states and no state of device programs, which tell as much; None: all.
    distribution: PositiveInt | None = None
    samplers: PositiveInt = 4096  # open at once, of one model
    grammars: PositiveInt = 64  # compiled and held
    queues: PositiveInt = 256  # open command queues
    queued_commands: PositiveInt = 4096  # commands sent to queues and not done
    futures: PositiveInt = 4096  # open futures
    children: PositiveInt = 256  # child instances alive
    child_depth: NonNegativeInt = 8  # generations of children below an instance of a client
    # One message between instance and client; Wasmtime lifts 2.6 MB.
    message_bytes: PositiveInt = 2 << 20
    mailbox_bytes: PositiveInt = 16 << 20  # messages kept for a reader that does not read
    detached_seconds: PositiveFloat = 60.0  # life after the client that waits for it has vanished


MAX_PRIORITY = 100


class Quota(Section):
    """The part of a server that one user may have, with all instances together."""

    # Of the time that users share: of the worker, of guests on the control thread, and of confined
    # processes.
    weight: PositiveFloat = 1.0
    # The most of what the server has: instances, sessions, embeds, samplers, exported pages,
    # host pages, futures, bytes of messages, of programs and of memory.
    share: float = Field(default=0.5, gt=0, le=1)
    # The highest priority of a queue. Above 0 a user's work goes before that of all others.
    priority: int = Field(default=0, ge=0, le=MAX_PRIORITY)
    # Instances that may be launched in a second, children too; as many at once after a rest.
    launches: PositiveFloat = 200.0
    # Bytes of memory that all instances together may have taken; None: a share of `guest_memory`.
    memory: PositiveInt | None = None
    # An export (a saved context) that no instance imports for so long ends; programs may ask for
    # less.
    export_seconds: PositiveFloat = 86400.0


class Budget(Section):
    """The budget of all instances of one program for each user in a day (UTC). One that is
    spent ends them, and no more are started that day.
    """

    instances: PositiveFloat | None = None  # that were started
    prompt_tokens: PositiveFloat | None = None  # that were computed
    generated_tokens: PositiveFloat | None = None  # by samplers
    cached_tokens: PositiveFloat | None = None  # of prompts, which the prefix cache had
    page_seconds: PositiveFloat | None = None  # of KV pages on the device, shared ones of each
    cpu_seconds: PositiveFloat | None = None  # of guests
    tool_seconds: PositiveFloat | None = None  # of calls outside, each of several at once


class ProgramGoal(Section):
    """When instances of one program go before others of their user, where a launch does not say."""

    deadline: Annotated[float, Field(gt=0, le=1e9)] | None = None  # seconds from the launch
    # "latency" goes before those without one, "throughput" behind them.
    objective: Literal["latency", "throughput"] | None = None
    expected_tokens: PositiveInt | None = None  # that one generates; else it is learned


class Quotas:
    """The quotas of all users. Clients that need no key are one user, who may have everything."""

    def __init__(self, default: Quota, of_users: Mapping[str, Quota]) -> None:
        """Takes the quota of every user, and those of single users instead."""
        self._default = default
        local = Quota(share=1.0, priority=MAX_PRIORITY, launches=math.inf, export_seconds=math.inf)
        self._of_users = {LOCAL_USER: local, **of_users}

    def of(self, user: str) -> Quota:
        """A user's quota."""
        return self._of_users.get(user, self._default)

    def weight(self, user: str) -> float:
        """A user's weight."""
        return self.of(user).weight

    def memory(self, user: str, size: int) -> int:
        """How much of `size` bytes of memory a user's instances may have taken."""
        return self.of(user).memory or self.most(user, size)

    def most(self, user: str, size: int) -> int:
        """How many of `size` a user may have; one at least."""
        return max(1, int(size * self.of(user).share))
