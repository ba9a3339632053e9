"""The Wasm runtime: components as fibers on one thread, through Wasmtime's C API."""

from pie_control.wasm.engine import Component, Engine, EngineConfig, GuestLimits
from pie_control.wasm.guest import Guest, Status
from pie_control.wasm.inspection import CONTRACT, CONTRACT_VERSION
from pie_control.wasm.linker import SUSPENDED, HostFunction, Linker
from pie_control.wasm.trap import MAX_LIST_ITEMS, MAX_TEXT_BYTES, GuestTrap
from pie_control.wasm.types import (
    BOOL,
    F32,
    F64,
    S32,
    STRING,
    STRING_LIST,
    U8_LIST,
    U32,
    U32_ARRAY,
    U32_LIST,
    U64,
    Array,
    Enum,
    List,
    Tuple,
    Type,
)
from pie_control.wasm.written_pages import WrittenPages

__all__ = [
    "BOOL",
    "CONTRACT",
    "CONTRACT_VERSION",
    "F32",
    "F64",
    "MAX_LIST_ITEMS",
    "MAX_TEXT_BYTES",
    "S32",
    "STRING",
    "STRING_LIST",
    "SUSPENDED",
    "U8_LIST",
    "U32",
    "U32_ARRAY",
    "U32_LIST",
    "U64",
    "Array",
    "Component",
    "Engine",
    "EngineConfig",
    "Enum",
    "Guest",
    "GuestLimits",
    "GuestTrap",
    "HostFunction",
    "Linker",
    "List",
    "Status",
    "Tuple",
    "Type",
    "WrittenPages",
]
