"""The Wasmtime engine: compiled components, room for guests, the longest turn."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import platform
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import structlog
import wasmtime
from wasmtime import Config, WasmtimeError
from wasmtime import _bindings as bindings
from wasmtime import component as wasm

from pie_control.errors import ProgramRejected
from pie_control.wasm import symbols
from pie_control.wasm.cache import Cache, code_name, digest_of
from pie_control.wasm.inspection import Offer, check_component, check_format, explain_compile_error
from pie_control.wasm.written_pages import WrittenPages

_IDLE_SLICES = 20  # after so many slices without a guest running the thread sleeps until one does


class Ticker:
    """Advances the engine's epoch when a turn has lasted a whole slice, and each slice after until
    it ends.

    A guest's deadline is the next epoch, so each turn gets a full slice whatever other turns did.
    """

    def __init__(self, engine: wasmtime.Engine, slice_ms: float) -> None:
        self.epoch = 0  # how often it has advanced
        self._engine = engine
        self._address = ctypes.cast(engine.ptr(), ctypes.c_void_p).value
        self._slice_ns = int(slice_ms * 1e6)
        self._started_ns = 0  # when the turn in progress began; 0 between turns
        self._asleep = True
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # a finalizer may stop it on its own thread
        self._stopped = False

    def begin(self, now_ns: int) -> None:
        """A turn begins."""
        self._started_ns = now_ns
        if self._asleep:
            self._asleep = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wasm-ticker", daemon=True)
                self._thread.start()
            self._wake.set()

    def end(self) -> None:
        """The turn has ended."""
        self._started_ns = 0

    def stop(self) -> None:
        """Ends the thread."""
        with self._lock:
            self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        seen = 0  # the turn that `due` is about
        due = 0  # when its slice is over
        idle = 0
        while not self._stopped:
            started = self._started_ns
            wait = self._slice_ns
            if started:
                idle = 0
                if started != seen:
                    seen, due = started, started + self._slice_ns
                wait = due - time.perf_counter_ns()
                if wait <= 0:
                    self._advance(started)
                    # Once may not do: a guest counts from when it goes on, which is after `begin`,
                    # and if its thread was held up in between, after the end of its slice.
                    due = time.perf_counter_ns() + self._slice_ns
                    continue
            else:
                idle += 1
            if idle > _IDLE_SLICES:
                self._wake.clear()
                self._asleep = True
                if not self._started_ns:
                    self._wake.wait()
                self._asleep = False
                idle = 0
            else:
                time.sleep(wait / 1e9)

    def _advance(self, started: int) -> None:
        with self._lock:
            if not self._stopped and self._started_ns == started:  # still the same turn
                self.epoch += 1
                symbols.increment_epoch(self._address)


MOST_WAITING = 32  # stores


class _Remains:
    """A store to delete, and what must outlive it."""

    __slots__ = ("owners", "store")

    def __init__(self, store: int, owners: object) -> None:
        self.store = store
        self.owners = owners


class Reaper:
    """Deletes stores beside the thread that runs guests: to give megabytes back takes a
    millisecond.

    A store may be deleted on any thread once its guest's stack is gone.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Remains | threading.Event | None] = SimpleQueue()
        # Not by address: the next store may lie where one was deleted before the thread could say
        # so.
        self._waiting: set[_Remains] = set()
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Stores that still take a guest's place."""
        return len(self._waiting)

    def bury(self, store: int, owners: object) -> None:
        """Deletes a store soon, or at once if too many wait; its owners live until then."""
        if self._stopped or len(self._waiting) >= MOST_WAITING:
            symbols.store_delete(store)
            return
        remains = _Remains(store, owners)
        self._waiting.add(remains)
        self._queue.put(remains)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wasm-reaper", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Waits until all are deleted."""
        if self._thread is None:
            return
        if self._stopped:
            self._thread.join()
            return
        done = threading.Event()
        self._queue.put(done)
        done.wait()

    def stop(self) -> None:
        """Ends the thread once nothing waits."""
        self._stopped = True
        self._queue.put(None)

    def _run(self) -> None:
        while self._delete_next():
            pass

    def _delete_next(self) -> bool:
        """Waits for the next; holds nothing while it waits, so that an engine can end."""
        remains = self._queue.get()
        if remains is None:
            return False
        if isinstance(remains, threading.Event):
            remains.set()
            return True
        symbols.store_delete_aside(remains.store)
        self._waiting.discard(remains)
        return True


log = structlog.get_logger("pie.wasm")

# Bytes that a guest's calls may take; CPython reaches its own recursion limit in it.
WASM_STACK = 2 << 20
FIBER_STACK = 4 << 20  # the guest's calls and, above them, the host functions that they call
RESERVATION = 4 << 30  # address space of a memory: all that 32 bits reach, so loads need no checks
GUARD = 32 << 20
MEMORIES = 2  # most linear memories of one component
TABLE_ELEMENTS = 100_000  # most elements of one table of a guest; CPython has 6 000
TABLES = 8  # most tables of one component; CPython has two
WINCH = 2  # `WASMTIME_STRATEGY_WINCH` in wasmtime/config.h
CORE_INSTANCES = 256  # most core instances of one component; CPython has about 40
# By machine: the target of code for all its CPUs, of x86-64 those since 2009.
_V2 = ("has_sse3", "has_ssse3", "has_cmpxchg16b", "has_sse41", "has_sse42", "has_popcnt")
_TARGETS = {
    "x86_64": ("x86_64-unknown-linux-gnu", _V2),
    "aarch64": ("aarch64-unknown-linux-gnu", ()),
}


@dataclass(frozen=True)
class EngineConfig:
    """Settings that all guests of an engine share."""

    max_instances: int = 1000  # guests alive at once
    memory_bytes: int = 256 << 20  # most linear memory of one guest
    table_elements: int = TABLE_ELEMENTS
    slice_ms: float = 5.0  # longest turn of a guest that does not wait
    cache_folder: Path | None = None  # compiled code; None: not cached
    # Traps name source lines. Programs' debug information is then read by this process, which no
    # limit holds: only for programs that are trusted.
    source_lines: bool = False
    # Code is made by Wasmtime's baseline compiler, Winch: in a quarter of the time, and slower.
    # It refuses what few compilers emit, so it is for the Python runtime alone.
    baseline: bool = False


@dataclass(frozen=True)
class GuestLimits:
    """The limits of one guest; the engine's own hold as well."""

    memory_bytes: int  # of each linear memory
    table_elements: int  # of each table


class Engine:
    """Compiles components and holds the memory that guests run in.

    Guests of one engine run on one thread; `load` may be called from any.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Reserves address space for the guests.

        Raises:
            MemoryError: if the system grants too little address space.
        """
        self.config = config
        # The C API has no setting for it; Wasmtime reads this variable when an engine is made.
        os.environ["WASMTIME_BACKTRACE_DETAILS"] = "1" if config.source_lines else "0"
        if (room := room_for(config.max_instances)) < config.max_instances:
            raise MemoryError(
                f"the system grants address space for {room} guests, not for"
                f" {config.max_instances}; lower `max_instances`, or lift the limit on virtual"
                " memory (`ulimit -v unlimited`)"
            )
        self.engine = wasmtime.Engine(_configure(_settings(config), baseline=config.baseline))
        self.address = ctypes.cast(self.engine.ptr(), ctypes.c_void_p).value or 0
        self.ticker = Ticker(self.engine, config.slice_ms)
        weakref.finalize(self, self.ticker.stop).atexit = False
        self.stores: set[int] = set()  # of guests that live
        self.reaper = Reaper()
        weakref.finalize(self, self.reaper.stop).atexit = False
        self.offer: Offer | None = None  # what components may import; set by the linker
        self._cache = (
            None if config.cache_folder is None else Cache(config.cache_folder, fingerprint(config))
        )

    def make_room(self) -> None:
        """Before a guest starts: waits for places of guests that have ended, if all are taken."""
        if len(self.stores) + self.reaper.waiting > self.config.max_instances:
            self.reaper.finish()

    def load(self, data: bytes) -> Component:
        """Checks and compiles a component, or takes its code from the cache. Blocks.

        Compiling takes time and memory in proportion to what the component's author wants: that of
        a stranger is compiled by `compile_file` in a process that may fail.

        Raises:
            ProgramRejected: if it cannot run here; the text says why and how to mend it.
        """
        component = self.find(data)
        if component is not None:
            return component
        try:
            component = Component(self, wasm.Component(self.engine, data))
        except WasmtimeError as error:
            text = explain_compile_error(str(error), self.config.memory_bytes)
            raise ProgramRejected(text) from None
        self._check(component)
        if self._cache is not None:
            try:
                self._cache.store(data, component.compiled.serialize())
            except OSError as error:
                log.warning("compiled code could not be cached", reason=str(error))
        return component

    def find(self, data: bytes | mmap.mmap, digest: str = "") -> Component | None:
        """A component whose code is in the cache, checked. Blocks. Takes the component, and its
        digest (`digest_of`) if that is known.

        Raises:
            ProgramRejected: as `load`.
        """
        check_format(data)
        path = None if self._cache is None else self._cache.find(digest or digest_of(data))
        if path is None:
            return None
        try:
            compiled = wasm.Component.deserialize_file(self.engine, str(path))
        except WasmtimeError as error:
            log.warning("compiled code is of no use here; compiling again", reason=str(error))
            return None
        component = Component(self, compiled)
        self._check(component)
        return component

    def _check(self, component: Component) -> None:
        if self.offer is not None:
            check_component(component.compiled, self.engine, self.offer)
            component.checked = self.offer


class Component:
    """Compiled code, from which any number of guests start. Made by `Engine.load`.

    Attributes:
        written: pages to copy ahead, of a component with a large image and many guests.
        checked: what is offered, once it is known that the component imports nothing else.
    """

    def __init__(self, engine: Engine, compiled: wasm.Component) -> None:
        self.engine = engine
        self.compiled = compiled
        self.address = ctypes.cast(compiled.ptr(), ctypes.c_void_p).value or 0
        self.written: WrittenPages | None = None
        self.checked: Offer | None = None
        self.run_index: int | None = symbols.export_index(self.address, None, b"run", 3)
        if self.run_index is not None:
            weakref.finalize(self, symbols.export_index_delete, self.run_index).atexit = False


def compile_file(
    path: str,
    memory_bytes: int,
    table_elements: int,
    cache_folder: str,
    source_lines: bool,
    baseline: bool = False,
) -> None:
    """Compiles a component into the cache of engines with these settings.

    Raises:
        ProgramRejected: as `Engine.load`, but for what it imports, which `find` checks.
    """
    folder = Path(cache_folder)
    config = EngineConfig(
        1,
        memory_bytes,
        table_elements,
        cache_folder=folder,
        source_lines=source_lines,
        baseline=baseline,
    )
    Engine(config).load(Path(path).read_bytes())


def portable_code(data: bytes) -> tuple[str, bytes]:
    """Optimized code of a component for all CPUs of this kind under Linux, and the name by which
    `Cache.find` looks for it.

    Raises:
        WasmtimeError: it cannot be compiled.
    """
    plain = EngineConfig(max_instances=1)
    config = _configure(_settings(plain), baseline=False)
    target, flags = _TARGETS[platform.machine()]
    if error := bindings.wasmtime_config_target_set(config.ptr(), target.encode()):
        raise WasmtimeError._from_ptr(error)
    for flag in flags:
        bindings.wasmtime_config_cranelift_flag_enable(config.ptr(), flag.encode())
    code = bytes(wasm.Component(wasmtime.Engine(config), data).serialize())
    return code_name(digest_of(data), fingerprint(plain)), code


def fingerprint(config: EngineConfig) -> str:
    """Names everything that compiled code depends on, apart from the program.

    Limits are looked at when code is loaded, and leave it as it is.
    """
    facts: tuple[object, ...] = (symbols.WASMTIME_VERSION, platform.machine())
    if config.source_lines:
        facts = (*facts, "source lines")
    if config.baseline:
        facts = (*facts, "baseline")
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _settings(config: EngineConfig) -> dict[str, int]:
    """The pooling allocator's settings: room for `max_instances` CPython runtimes.

    What a guest wrote is given back to the system when it ends. Keeping pages resident for the next
    guest was measured not to start any guest faster, and costs memory for every slot.
    """
    guests = config.max_instances
    return {
        "total_component_instances": guests,
        "total_stacks": guests,
        "total_core_instances": guests * 64,
        "total_memories": guests * MEMORIES,
        "total_tables": guests * 4,
        "max_core_instances_per_component": CORE_INSTANCES,
        "max_memories_per_component": MEMORIES,
        "max_tables_per_component": TABLES,
        "max_memory_size": config.memory_bytes,
        "table_elements": config.table_elements,
    }


def _configure(settings: dict[str, int], *, baseline: bool) -> Config:
    config = Config()
    config.epoch_interruption = True
    handle = config.ptr()
    if baseline:  # the binding's own property knows no other than Cranelift
        bindings.wasmtime_config_strategy_set(handle, WINCH)
    bindings.wasmtime_config_max_wasm_stack_set(handle, WASM_STACK)
    bindings.wasmtime_config_async_stack_size_set(handle, FIBER_STACK)
    bindings.wasmtime_config_memory_reservation_set(handle, RESERVATION)
    bindings.wasmtime_config_memory_guard_size_set(handle, GUARD)
    bindings.wasmtime_config_memory_may_move_set(handle, False)
    bindings.wasmtime_config_memory_init_cow_set(handle, True)
    bindings.wasmtime_config_wasm_threads_set(handle, False)
    bindings.wasmtime_config_wasm_memory64_set(handle, False)
    pool = bindings.wasmtime_pooling_allocation_config_new()
    for name, value in settings.items():
        getattr(bindings, f"wasmtime_pooling_allocation_config_{name}_set")(pool, value)
    bindings.wasmtime_pooling_allocation_strategy_set(handle, pool)
    bindings.wasmtime_pooling_allocation_config_delete(pool)
    return config


def room_for(guests: int) -> int:
    """For how many guests, of so many at most, the system grants address space: refused inside
    Wasmtime it would abort the process. Raises `MemoryError`: for none.
    """
    while True:
        size = guests * (MEMORIES * (RESERVATION + GUARD) + FIBER_STACK)
        try:
            mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
            return guests
        except (OSError, OverflowError, ValueError) as error:
            if guests == 1:
                raise MemoryError(
                    f"the system refuses {size >> 30} GiB of address space for a guest ({error});"
                    " lift the limit on virtual memory (`ulimit -v unlimited`)"
                ) from None
            guests //= 2
