"""asyncio on the host's `wait`: an event loop without threads, sockets or polling.

A turn runs the callbacks that are ready; when there is none left, the whole instance waits in the
host for its futures and for the earliest timer, at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import sys
import traceback
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from inferlet import raw
from inferlet.raw._convert import as_u32

T = TypeVar("T")

POLL_EVERY = 16  # turns of busy tasks between two looks at the host's futures


class HostLoop(asyncio.AbstractEventLoop):
    """The event loop of an inferlet."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}  # host futures that tasks wait for
        self._alarm: tuple[float, int] | None = None  # due time and host future of the next timer
        self._always: int | None = None  # a host future that is always ready, see `_poll`
        self._turns = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._debug = False
        self._exception_handler: Callable[[Any, dict[str, Any]], object] | None = None
        self._task_factory: Any = None
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()

    # Running

    def run_until_complete(self, future: Any) -> Any:
        """Runs until the future, or the coroutine as a task, is done; returns its result."""
        self._check_closed()
        future = asyncio.ensure_future(future, loop=self)
        future.add_done_callback(self._stop_when_done)
        try:
            self.run_forever()
        finally:
            future.remove_done_callback(self._stop_when_done)
        if not future.done():
            raise RuntimeError("the event loop was stopped before the future was done")
        return future.result()

    def run_forever(self) -> None:
        """Runs until `stop`."""
        self._check_closed()
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("an event loop is already running: use `await`")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generators.add, finalizer=self._finalize_generator)
        self._running = True
        events._set_running_loop(self)
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._stopping = False
            self._running = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def stop(self) -> None:
        """Ends `run_forever` after the current turn."""
        self._stopping = True

    def is_running(self) -> bool:
        """True if the loop runs."""
        return self._running

    def is_closed(self) -> bool:
        """True if the loop is closed."""
        return self._closed

    def close(self) -> None:
        """Cancels all that the loop still waits for."""
        if self._running:
            raise RuntimeError("a running event loop can't be closed")
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        for handle in self._waiting:
            raw.cancel(handle)
        self._waiting.clear()
        self._drop_alarm()
        if self._always is not None:
            raw.cancel(self._always)
            self._always = None

    async def shutdown_asyncgens(self) -> None:
        """Closes the asynchronous generators that are still open."""
        generators = list(self._generators)
        self._generators.clear()
        await asyncio.gather(*(g.aclose() for g in generators), return_exceptions=True)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Does nothing: there are no threads."""

    def _stop_when_done(self, _: object) -> None:
        self._stopping = True

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        if not self._closed:
            self.create_task(generator.aclose())

    def _check_closed(self) -> None:
        if self._closed:
            raise RuntimeError("the event loop is closed")

    def _turn(self) -> None:
        ready = self._ready
        if not ready:
            self._block()
        elif self._waiting:
            # Tasks are busy. A call of the host costs more than a turn, so look only now and then.
            self._turns += 1
            if self._turns % POLL_EVERY == 0:
                self._poll()
        if self._timers:
            self._fire_timers()
        # Only those that are ready now: what they add runs in the next turn, after timers and
        # futures.
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _block(self) -> None:
        """Waits in the host until a future is ready or the earliest timer is due."""
        handles = list(self._waiting)
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if timers:
            handles.append(self._set_alarm(timers[0][0]))
        elif not handles:
            # The host would wait forever, and the client with it.
            raise RuntimeError("deadlock: every task waits for something that nothing can bring")
        self._wake(raw.wait(handles))

    def _poll(self) -> None:
        """Looks at the host's futures without waiting, and lets other inferlets run."""
        if self._always is None:
            self._always = raw.sleep(0)
            raw.wait([self._always])
        # `wait` for nothing ends the turn: other inferlets run. The second one, with a future that
        # is always ready, returns at once with those that are ready by then.
        raw.wait([])
        self._wake(raw.wait([*self._waiting, self._always]))

    def _wake(self, handles: list[int]) -> None:
        for handle in handles:
            waiter = self._waiting.pop(handle, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _set_alarm(self, due: float) -> int:
        # One timer of the host at a time: that of the earliest of ours. It stays while it fits.
        if self._alarm is None or self._alarm[0] != due:
            self._drop_alarm()
            delay = max(0, int((due - self.time()) * 1e9) + 1)
            self._alarm = (due, raw.sleep(delay))
        return self._alarm[1]

    def _drop_alarm(self) -> None:
        if self._alarm is not None:
            raw.cancel(self._alarm[1])
            self._alarm = None

    def _fire_timers(self) -> None:
        now = self.time()
        timers = self._timers
        while timers and timers[0][0] <= now:
            handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)

    # Scheduling

    def time(self) -> float:
        """Seconds of the host's monotonic clock."""
        return raw.monotonic_now() / 1e9

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Calls back in the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Calls back after this many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Calls back when `time` says so."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        # asyncio cancels most timers (time-outs), which stay in the heap: rebuild it when half are
        # dead.
        timers = self._timers
        live = (
            sum(not entry[2].cancelled() for entry in timers) if len(timers) > 64 else len(timers)
        )
        if live * 2 < len(timers):
            self._timers = [entry for entry in timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:  # type: ignore[override]
        """Starts a coroutine as a task."""
        self._check_closed()
        if self._task_factory is not None:
            task: asyncio.Task[T] = self._task_factory(self, coro, **options)
            return task
        return asyncio.Task(coro, loop=self, **options)

    def set_task_factory(self, factory: Any) -> None:
        """Sets what makes tasks; None for the default."""
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        """The function that makes tasks."""
        return self._task_factory

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        """Raises: an inferlet has one thread."""
        raise RuntimeError(
            "an inferlet has one thread: call the function directly, or start another inferlet with"
            " `runtime.launch`"
        )

    # Errors and debugging

    def get_exception_handler(self) -> Any:
        """The handler of exceptions that were never awaited."""
        return self._exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        """Sets the handler of exceptions that were never awaited; None for the default."""
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Writes to standard error, that is the instance's log."""
        print(context.get("message", "an exception was never awaited"), file=sys.stderr)
        error = context.get("exception")
        if error is not None:
            traceback.print_exception(error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Calls the exception handler."""
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.default_exception_handler(context)

    def get_debug(self) -> bool:
        """True if asyncio's debug mode is on."""
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        """Sets asyncio's debug mode."""
        self._debug = enabled


def is_alone() -> bool:
    """True if nothing else could run before a host future is ready: then the task may wait at once.

    A task switch through asyncio costs more than the rest of a generation step.
    """
    loop = events._get_running_loop()
    if isinstance(loop, HostLoop):
        if loop._ready or loop._waiting or loop._timers:
            return False
        # A task that is being cancelled has to get its CancelledError at an `await` that suspends.
        task = asyncio.current_task(loop)
        return task is None or not task.cancelling()
    return True


async def ready(future: int) -> None:
    """Waits until a host future is ready; other tasks run meanwhile. Consume it afterwards.

    Args:
        future: a handle that a function of `inferlet.raw` returned.

    If the waiting task is cancelled, so is the future.
    """
    future = as_u32(future)
    if is_alone():
        raw.wait([future])
        return
    loop = events._get_running_loop()
    assert isinstance(loop, HostLoop)
    # The loop waits in the host for the futures of all tasks at once, and sets the waiter of each.
    waiter: asyncio.Future[None] = loop.create_future()
    loop._waiting[future] = waiter
    try:
        await waiter
    except asyncio.CancelledError:
        loop._waiting.pop(future, None)
        raw.cancel(future)
        raise
