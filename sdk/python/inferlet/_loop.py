"""asyncio on the host's `wait`: an event loop without threads, sockets or polling.

A turn runs the callbacks that are ready; when there is none left, the whole instance waits in the
host for its futures and for the earliest timer, at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, NoReturn
from weakref import WeakSet

from inferlet import raw
from inferlet.raw._convert import as_u32

POLL_EVERY = 16  # turns of busy tasks between two looks at the host's futures


class HostLoop(asyncio.BaseEventLoop):
    """The event loop of an inferlet: asyncio's own, but for what waits for an operating system."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _asyncgens: WeakSet[AsyncGenerator[Any, Any]]

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, asyncio.Future[None]] = {}  # host futures that tasks wait for
        self._alarm: tuple[float, int] | None = None  # due time and host future of the next timer
        self._always: int | None = None  # a host future that is always ready, see `_poll`
        self._turns = 0
        self._cancelled = 0  # timers, since the heap was made
        self.tasks = 0  # that were made

    def __del__(self) -> None:
        """Nothing: what it waits for ends with the instance."""

    def close(self) -> None:
        """Cancels all that the loop still waits for."""
        super().close()
        for handle in self._waiting:
            raw.cancel(handle)
        self._waiting.clear()
        self._drop_alarm()
        if self._always is not None:
            raw.cancel(self._always)
            self._always = None

    def _run_once(self) -> None:
        """A turn, in asyncio's place: it looks at the clock and at the host only where it has to,
        for a call of either costs more than a turn.
        """
        ready = self._ready
        if not ready and not self._stopping:
            self._block()
        elif self._waiting:
            # Tasks are busy, so look only now and then.
            self._turns += 1
            if self._turns % POLL_EVERY == 0:
                self._poll()
        if self._scheduled:
            self._fire_timers()
        # Only those that are ready now: what they add runs in the next turn, after timers and
        # futures.
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        """A task, which is counted."""
        self.tasks += 1
        return super().create_task(coro, **named)

    def _block(self) -> None:
        """Waits in the host until a future is ready or the earliest timer is due."""
        handles = list(self._waiting)
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        if timers:
            handles.append(self._set_alarm(timers[0].when()))
        elif not handles:
            # The host would wait forever, and the client with it.
            waits = ", ".join(
                f"{frame.f_code.co_filename}:{frame.f_lineno}"
                for task in asyncio.all_tasks(self)
                for frame in task.get_stack()[-1:]
            )
            raise RuntimeError(
                f"deadlock: every task waits for something that nothing can bring ({waits})"
            )
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
        timers = self._scheduled
        while timers and timers[0].when() <= now:
            handle = heapq.heappop(timers)
            if not handle.cancelled():
                self._ready.append(handle)

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Calls back in the next turn; each step of a task passes here, so nothing is checked."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        # asyncio cancels most timers (time-outs), which stay in the heap: rebuild it when half
        # may be dead.
        self._cancelled += 1
        if self._cancelled > 32 + len(self._scheduled) // 2:
            self._cancelled = 0
            self._scheduled = [timer for timer in self._scheduled if not timer.cancelled()]
            heapq.heapify(self._scheduled)

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        # A turn earlier than asyncio's: what a program leaves by `break` is undone before it goes
        # on from its next `await`.
        self._asyncgens.discard(agen)
        if not self.is_closed():
            self.create_task(agen.aclose())

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        """Raises: an inferlet has one thread."""
        raise RuntimeError(
            "an inferlet has one thread: call the function directly, or start another inferlet with"
            " `runtime.launch`"
        )


def is_alone() -> bool:
    """True if nothing else could run before a host future is ready: then the task may wait at once.

    A task switch through asyncio costs more than the rest of a generation step.
    """
    loop = events._get_running_loop()
    if isinstance(loop, HostLoop):
        if loop._ready or loop._waiting or loop._scheduled:
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
