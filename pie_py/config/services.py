"""Settings of messaging, the store, the compilation of grammars, and records of API calls."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from pie_py.config.section import Section


class MessagingConfig(Section):
    """Bounds of messages between a user's instances; a subscriber's bytes are `mailbox_bytes`."""

    subscriptions: PositiveInt = 256  # of one instance
    subscribers: PositiveInt = 2000  # of one topic, in all instances of a user
    box_messages: PositiveInt = 4096  # not yet read by one subscriber
    queues: PositiveInt = 4096  # work queues of one user that hold messages
    queue_messages: PositiveInt = 65536  # in one work queue
    user_bytes: PositiveInt = 64 << 20  # in all work queues of one user; half of it in one queue

    @property
    def queue_bytes(self) -> int:
        """The most that one work queue may hold, in bytes."""
        return self.user_bytes // 2


class StoreConfig(Section):
    """The store's room for one user."""

    keys: PositiveInt = 100_000  # of one user
    bytes: PositiveInt = 256 << 20  # keys and values together
    value_bytes: int = Field(default=1 << 20, ge=1, le=2 << 20)  # one value; Wasmtime lifts 2.6 MB
    waiting_bytes: PositiveInt = 16 << 20  # an instance's writes under way and values not yet taken
    # PostgreSQL's, as postgresql://user@host/name, in place of a file; for the nodes of a cluster.
    database: str = ""


class ConfinedConfig(Section):
    """Processes that work on what users sent: texts, sources, components, grammars."""

    processes: PositiveInt = 3  # at once; one fewer for one user
    memory: PositiveInt = 1 << 30  # bytes that each may allocate


class GrammarConfig(Section):
    """Compilation of grammars, for all instances together."""

    compile_seconds: PositiveFloat = 10.0  # of the CPU, for one grammar
    # Whether users share what is kept; then the time of a compilation tells that another has it.
    shared: bool = False


class OnDemandConfig(Section):
    """Models that are loaded when they are first asked for: `on_demand = true` in `[[models]]`."""

    # without a request, or a program that holds something of it
    idle_seconds: PositiveFloat = 300.0
    most: PositiveInt | None = None  # loaded at once; None: as many as memory allows
    # Bytes of the host that their workers take together; None: what is free when one is loaded.
    memory: PositiveInt | None = None
    wait_seconds: PositiveFloat = 60.0  # of a request over HTTP; of a program, for room


class DurableConfig(Section):
    """Instances that go on after a crash, and their journals."""

    programs: tuple[str, ...] = ()  # that are durable without being asked, by name
    # Whether requests that may change something, and calls of tools, are made again that were
    # under way at a crash. HTTP requests have the same `Idempotency-Key` then.
    retry: bool = False
    journal_bytes: PositiveInt = 256 << 20  # of one instance; it ends by name beyond that
    bytes: PositiveInt = 8 << 30  # of all journals, of which a user has a share
    keep_seconds: PositiveFloat = 86400.0  # journals of instances that have ended
    # Of waiting for a client, a timer or a topic, after which an instance has no memory.
    idle_seconds: PositiveFloat = 60.0
