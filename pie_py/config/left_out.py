"""Libraries without parts that a process has no use for, so that it starts sooner."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Imports within find these modules empty, unless they have been imported already.

    Who imports them later gets them as they are. Other parts of their package may rely on them, and
    so does what imports each other in a circle: they come before any further part of it.
    """
    empty = {name: ModuleType(name) for name in names if name not in sys.modules}
    sys.modules.update(empty)
    try:
        yield
    finally:
        for name in empty:
            del sys.modules[name]
            package, _, module = name.rpartition(".")
            if package in sys.modules:
                vars(sys.modules[package]).pop(module, None)
                sys.meta_path.insert(0, _Before(name, f"{package}."))


class _Before(MetaPathFinder):
    """Imports a module before the next one of its package."""

    def __init__(self, name: str, package: str) -> None:
        self._name, self._package = name, package

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Finds the next one as it is if it has come with the module."""
        if not fullname.startswith(self._package):
            return None
        sys.meta_path.remove(self)
        if fullname == self._name:
            return None
        import_module(self._name)
        module = sys.modules.get(fullname)
        if module is not None:  # its own spec would run it again
            module.__spec__ = ModuleSpec(fullname, _AsItIs(module.__spec__))
        return None if module is None else module.__spec__


class _AsItIs(Loader):
    """Loads a module that has been loaded."""

    def __init__(self, spec: ModuleSpec | None) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
