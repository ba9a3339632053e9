"""One running component: a fiber that `poll` runs until it waits, its slice ends, or it is done."""

from __future__ import annotations

import ctypes
import threading
import weakref
from enum import Enum, auto
from time import perf_counter_ns, thread_time_ns
from typing import Any

from wasmtime import _bindings as bindings

from pie_control.wasm import symbols
from pie_control.wasm.engine import CORE_INSTANCES, MEMORIES, TABLES, Component, GuestLimits
from pie_control.wasm.linker import Gate, HostCalls, Linker, turn
from pie_control.wasm.symbols import VALUE_SIZE
from pie_control.wasm.trap import GuestTrap, explain
from pie_control.wasm.types import STRING_LIST
from pie_control.wasm.values import read_outcome, writer

_write_strings = writer(STRING_LIST)


class Status(Enum):
    """How a turn of a guest ended."""

    RUNNING = "running"  # its slice is used up
    WAITING = "waiting"  # a host function has suspended it until `resume`
    DONE = "done"  # `run` has returned


class Phase(Enum):
    """Where a guest is in its life, until it ends."""

    MADE = auto()  # it has no arguments yet
    STARTED = auto()  # it has its arguments, and has had no turn
    INSTANTIATING = auto()  # its component is instantiated, in its turns or ahead of them
    RUNNING = auto()  # `run` has been called


class _Fiber:
    """The C objects of a guest. A slot that is freed while its future lives aborts the process."""

    def __init__(
        self, linker: Linker, component: Component, limits: GuestLimits, gate: Gate
    ) -> None:
        self.linker = linker  # these must outlive the store
        self.component = component
        self.gate = gate
        self.store: int = symbols.store_new(linker.engine.address, None, None)
        linker.engine.stores.add(self.store)
        symbols.store_limiter(
            self.store,
            limits.memory_bytes,
            limits.table_elements,
            CORE_INSTANCES,
            TABLES,
            MEMORIES,
        )
        self.context: int = symbols.store_context(self.store)
        symbols.set_deadline(self.context, 1)
        symbols.yield_at_deadline(self.context, 1)
        self.future: int | None = None
        self.error = ctypes.c_void_p()
        self._instance = bindings.wasmtime_component_instance_t()
        self._function = bindings.wasmtime_component_func_t()
        self._args = (ctypes.c_uint64 * (VALUE_SIZE // 8))()
        self._results = (ctypes.c_uint64 * (VALUE_SIZE // 8))()

    def set_arguments(self, args: list[str]) -> None:
        _write_strings(ctypes.addressof(self._args), args)

    def instantiate(self) -> None:
        self.linker.engine.make_room()
        self.future = symbols.linker_instantiate(
            self.linker.address,
            self.context,
            self.component.address,
            ctypes.addressof(self._instance),
            ctypes.addressof(self.error),
        )

    def copy_pages(self) -> None:
        """Copies the pages that guests of the component write to. It is instantiated."""
        written = self.component.written
        if written is not None and not self.error.value:
            written.copy(self.context, self._instance.store_id)

    def look_at_pages(self) -> None:
        """Learns from the pages that it has written to, at its end."""
        written = self.component.written
        if written is not None:
            written.look(self.context, self._instance.store_id)

    def call_run(self) -> None:
        self._drop_future()
        symbols.instance_function(
            ctypes.addressof(self._instance),
            self.context,
            self.component.run_index,
            ctypes.addressof(self._function),
        )
        self.future = symbols.function_call(
            ctypes.addressof(self._function),
            self.context,
            ctypes.addressof(self._args),
            1,
            ctypes.addressof(self._results),
            1,
            ctypes.addressof(self.error),
        )

    def outcome(self) -> tuple[bool, str]:
        return read_outcome(ctypes.addressof(self._results))

    def take_error(self) -> str | None:
        if not self.error.value:
            return None
        text = symbols.take_error(self.error.value)
        self.error.value = None
        return text

    def release(self) -> None:
        """Frees everything, the suspended stack first, memory soon."""
        self._drop_future()
        self.take_error()
        symbols.val_delete(ctypes.addressof(self._args))
        symbols.val_delete(ctypes.addressof(self._results))
        self.linker.engine.stores.discard(self.store)
        self.linker.engine.reaper.bury(self.store, (self.linker, self.component))

    def _drop_future(self) -> None:
        if self.future is not None:
            symbols.future_delete(self.future)
            self.future = None


class Guest(HostCalls):
    """One running component.

    All guests are polled from one thread. A guest frees what it holds when it is done, has trapped
    or is closed; dropping the last reference closes it too.
    """

    def __init__(
        self, linker: Linker, component: Component, state: Any, limits: GuestLimits
    ) -> None:
        """Takes a component and the state that its host functions get.

        Raises:
            ProgramRejected: if the component imports what the linker does not offer.
        """
        super().__init__(state)
        linker.admit(component)
        config = linker.engine.config
        limits = GuestLimits(
            min(limits.memory_bytes, config.memory_bytes),
            min(limits.table_elements, config.table_elements),
        )
        self.limits = limits
        self.cpu_ns = 0  # time spent in `poll`
        self._phase = Phase.MADE
        self._outcome: tuple[bool, str] | None = None
        self._making = threading.Lock()  # held by the thread that instantiates it
        self._ticker = linker.engine.ticker
        self._epoch = self._ticker.epoch
        self._fiber: _Fiber | None = _Fiber(linker, component, limits, self.gate)
        self._finalizer = weakref.finalize(self, self._fiber.release)
        self._finalizer.atexit = False

    def instantiate(self) -> None:
        """Instantiates the component, which runs no code of it, ahead of the first turn, and copies
        the pages that it will write to.

        On any thread; does nothing once the guest has had a turn or is closed. What fails is raised
        by the first `poll`.
        """
        with self._making:
            fiber = self._fiber
            if fiber is None or fiber.future is not None:
                return
            fiber.instantiate()
            while not symbols.future_poll(fiber.future):
                pass  # guests of the other thread have ended its slice
            fiber.copy_pages()

    def start(self, args: list[str]) -> None:
        """Sets the arguments of `run`. Nothing runs before the first `poll`."""
        if self._fiber is None or self._phase is not Phase.MADE:
            raise RuntimeError("a guest is started once")
        self._phase = Phase.STARTED
        self._fiber.set_arguments(args)

    def is_of(self, component: Component) -> bool:
        """True if it runs this component, and has not ended."""
        return self._fiber is not None and self._fiber.component is component

    def poll(self) -> Status:
        """Runs the guest for a turn.

        Returns:
            How the turn ended. A guest that waits and has not been resumed does not run.

        Raises:
            GuestTrap: if the guest broke a rule; it has ended.
        """
        fiber = self._fiber
        if fiber is None or self._phase is Phase.MADE:
            raise RuntimeError("only a guest that has been started and has not ended can be polled")
        if turn.guest is not None:
            raise RuntimeError("a host function cannot poll a guest")
        if self.pending is not None:
            return Status.WAITING
        ahead = False
        if self._phase is Phase.STARTED:
            with self._making:  # another thread may be at it
                ahead = fiber.future is not None
                if not ahead:
                    fiber.instantiate()
            self._phase = Phase.INSTANTIATING
        # An answer that could not be given: C has no way to trap in its place.
        done = self.fault is None and (ahead or self._run(fiber))
        is_made = done and self._phase is Phase.INSTANTIATING and not fiber.error.value
        if is_made and not self.closing:
            self._phase = Phase.RUNNING
            if not ahead:
                fiber.copy_pages()
            fiber.call_run()
            done = self._run(fiber)
        if self.escaped is not None:
            escaped, self.escaped = self.escaped, None
            self.close()
            raise escaped
        if self.closing:
            self._release()
            return Status.DONE
        if self.fault is not None:
            self._release()
            raise GuestTrap("other", self.fault.decode())
        if done:
            self._finish(fiber)
            return Status.DONE
        return Status.RUNNING if self.pending is None else Status.WAITING

    def give_way(self) -> None:
        """Within a host call: has the turn end as if its slice were used up, at the next call of a
        function of its own."""
        if self._fiber is not None:
            symbols.set_deadline(self._fiber.context, 0)

    @property
    def outcome(self) -> tuple[bool, str]:
        """Success of `run`, and its result or error text. Only after `Status.DONE`."""
        if self._outcome is None:
            raise RuntimeError("the guest has no outcome: it is not done, or was closed")
        return self._outcome

    def close(self) -> None:
        """Ends the guest at once and frees what it holds. Idempotent.

        From within one of its own host functions, it ends when that function returns.
        """
        self.closing = True
        if turn.guest is not self:
            self._release()

    def _run(self, fiber: _Fiber) -> bool:
        ticker = self._ticker
        if self._epoch != ticker.epoch:
            self._epoch = ticker.epoch
            symbols.set_deadline(fiber.context, 1)
        turn.guest = self
        start = thread_time_ns()  # others may have the CPU meanwhile
        ticker.begin(perf_counter_ns())
        try:
            return bool(symbols.future_poll(fiber.future))
        finally:
            ticker.end()
            turn.guest = None
            self.cpu_ns += thread_time_ns() - start

    def _finish(self, fiber: _Fiber) -> None:
        message = fiber.take_error()
        if message is None:
            self._outcome = fiber.outcome()
            fiber.look_at_pages()
        self._release()
        if message is not None:
            raise explain(message, self.limits.memory_bytes)

    def _release(self) -> None:
        with self._making:
            self._fiber = None  # it is done, has trapped or was closed, and holds nothing any more
            self.pending = None
            self._finalizer()
