"""Wasmtime's C API, as this package calls it. Nothing outside the package touches it.

wasmtime-py ships the whole C library but wraps only a part of it. The functions below are declared
once, with plain addresses as arguments: an `int` is what every caller has, and ctypes converts it
fastest. All of them keep the interpreter lock except those that run Wasm, compile it, or take long
beside it.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, c_bool, c_char_p, c_int64, c_size_t, c_uint64, c_void_p
from importlib.metadata import version
from typing import Any

from wasmtime import _bindings as bindings
from wasmtime import _ffi as ffi

WASMTIME_VERSION = "50.0.1"  # the release whose C API and memory layouts are written down here

VALUE_SIZE = 32  # bytes of a `wasmtime_component_val_t`
PAYLOAD = 8  # where its payload starts
# Of a `wasmtime_memory_t`: its store, its core instance, and its number among that one's own.
MEMORY_SIZE = 24
FIRST_INSTANCE = 1  # number of a store's first core instance; 0 is Wasmtime's own

# bool call(env, context, type, args, nargs, results, nresults) -> error
HostCall = CFUNCTYPE(c_size_t, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t)
# void call(env, context, type, args, nargs, results, nresults, error*, continuation*)
AsyncHostCall = CFUNCTYPE(
    None,
    c_void_p,
    c_void_p,
    c_void_p,
    c_void_p,
    c_size_t,
    c_void_p,
    c_size_t,
    c_void_p,
    c_void_p,
)


def _check() -> None:
    installed = version("wasmtime")
    if installed != WASMTIME_VERSION:
        raise ImportError(
            f"pie_control.wasm needs wasmtime {WASMTIME_VERSION}, found {installed};"
            f" install it with: pip install wasmtime=={WASMTIME_VERSION}"
        )
    value: Any = bindings.wasmtime_component_val_t
    spans: Any = bindings.wasmtime_component_vallist_t
    tuples: Any = bindings.wasmtime_component_valtuple_t
    strings: Any = bindings.wasm_byte_vec_t
    results: Any = bindings.wasmtime_component_valresult_t
    continuation: Any = bindings.wasmtime_async_continuation_t
    memory: Any = bindings.wasmtime_memory_t
    instance: Any = bindings.wasmtime_component_instance_t
    layout = {
        "size of a value": (ctypes.sizeof(value), VALUE_SIZE),
        "payload of a value": (value.of.offset, PAYLOAD),
        "size of a list": (ctypes.sizeof(spans), 16),
        "data of a list": (spans.data.offset, 8),
        "data of a tuple": (tuples.data.offset, 8),
        "data of a string": (strings.data.offset, 8),
        "value of a result": (results.val.offset, 8),
        "environment of a continuation": (continuation.env.offset, 8),
        "size of a memory": (ctypes.sizeof(memory), MEMORY_SIZE),
        "number of a memory": (memory.__private2.offset, 16),
        "store of an instance": (instance.store_id.offset, 0),
    }
    wrong = [name for name, (found, expected) in layout.items() if found != expected]
    if wrong:
        raise ImportError(
            f"wasmtime {installed} lays values out unlike its release ({', '.join(wrong)});"
            " reinstall it from PyPI"
        )


def _declare(library: Any, name: str, result: Any, *arguments: Any) -> Any:
    try:
        function = library[name]  # a new object each time: the bindings keep their own prototype
    except AttributeError:
        raise ImportError(
            f"wasmtime {WASMTIME_VERSION} on this platform lacks the C function {name};"
            " reinstall wasmtime from PyPI"
        ) from None
    function.restype = result
    function.argtypes = arguments
    return function


_check()

_KEEPS_LOCK = ctypes.PyDLL(None, handle=ffi.dll._handle)
_FREES_LOCK = ffi.dll

val_new = _declare(_KEEPS_LOCK, "wasmtime_component_val_new", c_size_t, c_void_p)
val_delete = _declare(_KEEPS_LOCK, "wasmtime_component_val_delete", None, c_void_p)
list_new = _declare(_KEEPS_LOCK, "wasmtime_component_vallist_new_uninit", None, c_void_p, c_size_t)
tuple_new = _declare(
    _KEEPS_LOCK, "wasmtime_component_valtuple_new_uninit", None, c_void_p, c_size_t
)
bytes_new = _declare(_KEEPS_LOCK, "wasm_byte_vec_new", None, c_void_p, c_size_t, c_char_p)
bytes_delete = _declare(_KEEPS_LOCK, "wasm_byte_vec_delete", None, c_void_p)

error_new = _declare(_KEEPS_LOCK, "wasmtime_error_new", c_size_t, c_char_p)
error_message = _declare(_KEEPS_LOCK, "wasmtime_error_message", None, c_void_p, c_void_p)
error_delete = _declare(_KEEPS_LOCK, "wasmtime_error_delete", None, c_void_p)

linker_add_call = _declare(
    _KEEPS_LOCK,
    "wasmtime_component_linker_instance_add_func",
    c_void_p,
    c_void_p,
    c_char_p,
    c_size_t,
    c_void_p,
    c_void_p,
    c_void_p,
)
linker_add_async_call = _declare(
    _KEEPS_LOCK,
    "wasmtime_component_linker_instance_add_func_async",
    c_void_p,
    c_void_p,
    c_char_p,
    c_size_t,
    c_void_p,
    c_void_p,
    c_void_p,
)
linker_instantiate = _declare(
    _KEEPS_LOCK,
    "wasmtime_component_linker_instantiate_async",
    c_void_p,
    c_void_p,
    c_void_p,
    c_void_p,
    c_void_p,
    c_void_p,
)

store_new = _declare(_KEEPS_LOCK, "wasmtime_store_new", c_void_p, c_void_p, c_void_p, c_void_p)
store_context = _declare(_KEEPS_LOCK, "wasmtime_store_context", c_void_p, c_void_p)
store_limiter = _declare(
    _KEEPS_LOCK,
    "wasmtime_store_limiter",
    None,
    c_void_p,
    c_int64,
    c_int64,
    c_int64,
    c_int64,
    c_int64,
)
store_delete = _declare(_KEEPS_LOCK, "wasmtime_store_delete", None, c_void_p)
# The same beside the thread that runs guests.
store_delete_aside = _declare(_FREES_LOCK, "wasmtime_store_delete", None, c_void_p)
set_deadline = _declare(
    _KEEPS_LOCK, "wasmtime_context_set_epoch_deadline", None, c_void_p, c_uint64
)
# Returns nothing in C, whatever its binding in wasmtime-py declares.
yield_at_deadline = _declare(
    _KEEPS_LOCK,
    "wasmtime_context_epoch_deadline_async_yield_and_update",
    None,
    c_void_p,
    c_uint64,
)
increment_epoch = _declare(_KEEPS_LOCK, "wasmtime_engine_increment_epoch", None, c_void_p)

export_index = _declare(
    _KEEPS_LOCK,
    "wasmtime_component_get_export_index",
    c_void_p,
    c_void_p,
    c_void_p,
    c_char_p,
    c_size_t,
)
export_index_delete = _declare(
    _KEEPS_LOCK, "wasmtime_component_export_index_delete", None, c_void_p
)
instance_function = _declare(
    _KEEPS_LOCK,
    "wasmtime_component_instance_get_func",
    c_bool,
    c_void_p,
    c_void_p,
    c_void_p,
    c_void_p,
)
function_call = _declare(
    _KEEPS_LOCK,
    "wasmtime_component_func_call_async",
    c_void_p,
    c_void_p,
    c_void_p,
    c_void_p,
    c_size_t,
    c_void_p,
    c_size_t,
    c_void_p,
)
memory_data = _declare(_KEEPS_LOCK, "wasmtime_memory_data", c_size_t, c_void_p, c_void_p)
memory_bytes = _declare(_KEEPS_LOCK, "wasmtime_memory_data_size", c_size_t, c_void_p, c_void_p)
# Runs Wasm: the lock is free meanwhile, so that the ticker can end the slice.
future_poll = _declare(_FREES_LOCK, "wasmtime_call_future_poll", c_bool, c_void_p)
# Unwinds the fiber's stack, which may run no Wasm and no callback of ours.
future_delete = _declare(_KEEPS_LOCK, "wasmtime_call_future_delete", None, c_void_p)


def take_error(error: int) -> str:
    """Text of a C API error, which is freed."""
    text = bindings.wasm_byte_vec_t()
    error_message(error, ctypes.addressof(text))
    message = ctypes.string_at(text.data, text.size).decode(errors="replace")
    bytes_delete(ctypes.addressof(text))
    error_delete(error)
    return message
