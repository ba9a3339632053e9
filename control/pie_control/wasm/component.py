"""A compiled component."""

from __future__ import annotations

import ctypes
import weakref
from typing import Protocol

import wasmtime
from wasmtime import component as wasm

from pie_control.wasm import symbols
from pie_control.wasm.written_pages import WrittenPages


class Owner(Protocol):
    """The engine that has compiled a component, which keeps it alive."""

    engine: wasmtime.Engine


class Component:
    """Compiled code, from which any number of guests start. Made by `Engine.load`.

    Attributes:
        written: pages to copy ahead, of a component with a large image and many guests.
    """

    def __init__(self, engine: Owner, compiled: wasm.Component) -> None:
        self.engine = engine
        self.compiled = compiled
        self.address = ctypes.cast(compiled.ptr(), ctypes.c_void_p).value or 0
        self.written: WrittenPages | None = None
        self.run_index: int | None = symbols.export_index(self.address, None, b"run", 3)
        if self.run_index is not None:
            weakref.finalize(self, symbols.export_index_delete, self.run_index).atexit = False
