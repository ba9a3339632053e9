"""Interface `source`: how the Python runtime component gets the program that it is to run."""

from __future__ import annotations

from typing import Any

from pie_control.api.binder import implement
from pie_control.instances.instance import Instance
from pie_control.programs.warm import Spare
from pie_control.wasm import SUSPENDED


def is_early(state: Instance | Spare) -> bool:
    """Whether a guest of the Python runtime has no program yet."""
    return isinstance(state, Spare)


def read(state: Instance | Spare) -> Any:
    """The Python program that the Python runtime is to run; suspends a guest that has none yet."""
    if isinstance(state, Spare):
        return SUSPENDED
    return state.host.lifecycle.source(state)


def keep(instance: Instance, code: str) -> None:
    """Keeps what the Python runtime has compiled."""
    instance.host.lifecycle.codes.keep(instance, code)


FUNCTIONS = implement("source", is_early, read, keep, suspends=(read,))
