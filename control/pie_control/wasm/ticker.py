"""The thread that ends a guest's slice."""

from __future__ import annotations

import ctypes
import threading
import time

import wasmtime

from pie_control.wasm import symbols

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
