"""The seam for benchmarks that look into a process: a function of theirs that is called in it.

A server's configuration may name one. It runs in the control process before its parts are made and
in the worker before it serves. Without one nothing is imported and nothing runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pie_py.config.observer import ObserverConfig

Process: TypeAlias = Literal["control", "worker"]
# Takes the process, the folder for what it finds, and the class or module through whose public
# functions the process exchanges messages: `order` in control; `receive`, `decode` and `send` in
# the worker.
Observer: TypeAlias = Callable[[Process, Path, Any], AbstractContextManager[None]]


def observing(
    config: ObserverConfig | None, process: Process, messages: Any
) -> AbstractContextManager[None]:
    """The observer's context; without a configuration one that does nothing.

    Raises:
        ImportError: if there is no such module.
        AttributeError: if there is no such function in it.
    """
    if config is None:
        return nullcontext()
    module, _, name = config.observer.partition(":")
    observer: Observer = getattr(importlib.import_module(module), name)
    config.folder.mkdir(parents=True, exist_ok=True)
    return observer(process, config.folder, messages)
