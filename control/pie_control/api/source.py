"""Interface `source`: how the Python runtime component gets the program that it is to run."""

from __future__ import annotations

from typing import Any

from pie_control.api.binder import implement
from pie_control.instances.instance import Instance
from pie_control.instances.launcher import Launcher
from pie_control.programs.instantiation import Unclaimed
from pie_control.wasm import SUSPENDED, HostFunction


class SourceCalls:
    """Where the Python runtime gets its programs from."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def functions(self) -> tuple[HostFunction, ...]:
        """The functions of the interface."""
        return implement("source", self.is_early, self.read, self.keep, suspends=(self.read,))

    def is_early(self, state: Instance | Unclaimed) -> bool:
        """Whether a guest of the Python runtime has no program yet."""
        return isinstance(state, Unclaimed)

    def read(self, state: Instance | Unclaimed) -> Any:
        """The Python program for the Python runtime; suspends a warm instance until it has one."""
        if isinstance(state, Unclaimed):
            return SUSPENDED
        return self._launcher.source(state)

    def keep(self, instance: Instance, code: str) -> None:
        """Keeps what the Python runtime has compiled."""
        self._launcher.codes.keep(instance, instance.program, code)
