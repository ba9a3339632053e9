"""Guests whose component is instantiated by a thread, some of them ahead of need.

A component that componentize-py has made takes 0.7 ms to instantiate: 40 core instances, and a
table of 7 000 functions, which Wasmtime fills one by one. No code of the guest runs and no page of
its image is written to, so it needs neither the thread of the guests nor much memory. Of many
launches at once, those whose turn is far are instantiated while the first ones run.
"""

from __future__ import annotations

import threading
from collections import deque

from pie_control.wasm import Component, Guest, GuestLimits, Linker


class Unclaimed:
    """The state of a guest that no launch has claimed yet."""


class Instantiation:
    """Makes guests with the same limits; those of one component with the help of a thread."""

    def __init__(self, linker: Linker, limits: GuestLimits, ahead: int) -> None:
        """Takes how many guests are made ahead of need; they take places of the engine."""
        self._linker = linker
        self._limits = limits
        self._ahead = ahead
        self._component: Component | None = None
        self._made: deque[Guest] = deque()
        self._launched: deque[Guest] = deque()  # that had had no turn when they were launched
        self._wanted = threading.Semaphore(0)  # guests to instantiate, at the most
        self._stopped = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._made)

    def offer(self, component: Component) -> None:
        """The thread instantiates guests of this component from now on."""
        if not self._ahead:
            return
        self._component = component
        self._wanted.release(self._ahead)
        if self._thread is None:
            name = "wasm-instantiation"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def guest(self, component: Component, state: object) -> Guest:
        """A guest that is yet to be started.

        Raises:
            ProgramRejected: if the component imports what the linker does not offer.
        """
        if self._made and self._made[0].is_of(component):
            guest = self._made.popleft()
            guest.state = state
            self._wanted.release()
            return guest
        guest = Guest(self._linker, component, state, self._limits)
        if component is self._component:
            self._launched.append(guest)
            self._wanted.release()
        return guest

    def stop(self) -> None:
        """Ends the thread and closes the guests that no launch has claimed."""
        self._stopped = True
        self._wanted.release()
        if self._thread is not None:
            self._thread.join()  # a millisecond: the engine must outlive the guest in the making
        while self._made:
            self._made.pop().close()
        self._launched.clear()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            if self._stopped:
                return
            if self._launched:
                self._launched.pop().instantiate()  # the one whose turn comes last
            elif len(self._made) < self._ahead:
                component = self._component
                assert component is not None, "a component is offered before the thread starts"
                guest = Guest(self._linker, component, Unclaimed(), self._limits)
                guest.instantiate()
                self._made.append(guest)
