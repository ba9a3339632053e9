"""Wasmtime's C API and the process's memory, as this package uses them, and nothing else does.

wasmtime-py ships the whole C library but wraps only a part of it. The functions below are declared
once, with plain addresses as arguments: an `int` is what every caller has, and ctypes converts it
fastest. All of them keep the interpreter lock except those that run Wasm, compile it, or take long
beside it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_bool, c_char_p, c_int64, c_size_t, c_uint64, c_void_p
from functools import partial
from importlib.metadata import version
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
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
AsyncHostCall = CFUNCTYPE(None, *(c_void_p,) * 4, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)


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


# How a signature is written: a letter for the result, a space, one for each argument.
_TYPES = {
    "p": c_void_p,
    "z": c_size_t,
    "s": c_char_p,
    "u": c_uint64,
    "i": c_int64,
    "b": c_bool,
    "-": None,
}


def _declare(library: Any, name: str, signature: str) -> Any:
    try:
        function = library[name]  # a new object each time: the bindings keep their own prototype
    except AttributeError:
        raise ImportError(
            f"wasmtime {WASMTIME_VERSION} on this platform lacks the C function {name};"
            " reinstall wasmtime from PyPI"
        ) from None
    result, _, arguments = signature.partition(" ")
    function.restype = _TYPES[result]
    function.argtypes = [_TYPES[letter] for letter in arguments]
    return function


_check()

_KEEPS_LOCK = ctypes.PyDLL(None, handle=ffi.dll._handle)
_FREES_LOCK = ffi.dll

val_new = _declare(_KEEPS_LOCK, "wasmtime_component_val_new", "z p")
val_delete = _declare(_KEEPS_LOCK, "wasmtime_component_val_delete", "- p")
list_new = _declare(_KEEPS_LOCK, "wasmtime_component_vallist_new_uninit", "- pz")
tuple_new = _declare(_KEEPS_LOCK, "wasmtime_component_valtuple_new_uninit", "- pz")
bytes_new = _declare(_KEEPS_LOCK, "wasm_byte_vec_new", "- pzs")
bytes_delete = _declare(_KEEPS_LOCK, "wasm_byte_vec_delete", "- p")
error_new = _declare(_KEEPS_LOCK, "wasmtime_error_new", "z s")
error_message = _declare(_KEEPS_LOCK, "wasmtime_error_message", "- pp")
error_delete = _declare(_KEEPS_LOCK, "wasmtime_error_delete", "- p")
linker_add_call = _declare(_KEEPS_LOCK, "wasmtime_component_linker_instance_add_func", "p pszppp")
linker_add_async_call = _declare(
    _KEEPS_LOCK, "wasmtime_component_linker_instance_add_func_async", "p pszppp"
)
linker_instantiate = _declare(_KEEPS_LOCK, "wasmtime_component_linker_instantiate_async", "p ppppp")
store_new = _declare(_KEEPS_LOCK, "wasmtime_store_new", "p ppp")
store_context = _declare(_KEEPS_LOCK, "wasmtime_store_context", "p p")
store_limiter = _declare(_KEEPS_LOCK, "wasmtime_store_limiter", "- piiiii")
store_delete = _declare(_KEEPS_LOCK, "wasmtime_store_delete", "- p")
# The same beside the thread that runs guests.
store_delete_aside = _declare(_FREES_LOCK, "wasmtime_store_delete", "- p")
set_deadline = _declare(_KEEPS_LOCK, "wasmtime_context_set_epoch_deadline", "- pu")
# Returns nothing in C, whatever its binding in wasmtime-py declares.
yield_at_deadline = _declare(
    _KEEPS_LOCK, "wasmtime_context_epoch_deadline_async_yield_and_update", "- pu"
)
increment_epoch = _declare(_KEEPS_LOCK, "wasmtime_engine_increment_epoch", "- p")
export_index = _declare(_KEEPS_LOCK, "wasmtime_component_get_export_index", "p ppsz")
export_index_delete = _declare(_KEEPS_LOCK, "wasmtime_component_export_index_delete", "- p")
instance_function = _declare(_KEEPS_LOCK, "wasmtime_component_instance_get_func", "b pppp")
function_call = _declare(_KEEPS_LOCK, "wasmtime_component_func_call_async", "p pppzpzp")
memory_data = _declare(_KEEPS_LOCK, "wasmtime_memory_data", "z pp")
memory_bytes = _declare(_KEEPS_LOCK, "wasmtime_memory_data_size", "z pp")
# Runs Wasm: the lock is free meanwhile, so that the ticker can end the slice.
future_poll = _declare(_FREES_LOCK, "wasmtime_call_future_poll", "b p")
# Unwinds the fiber's stack, which may run no Wasm and no callback of ours.
future_delete = _declare(_KEEPS_LOCK, "wasmtime_call_future_delete", "- p")


def take_error(error: int) -> str:
    """Text of a C API error, which is freed."""
    text = bindings.wasm_byte_vec_t()
    error_message(error, ctypes.addressof(text))
    message = ctypes.string_at(text.data, text.size).decode(errors="replace")
    bytes_delete(ctypes.addressof(text))
    error_delete(error)
    return message


# Memory by address, for `struct` and NumPy, without an object per access.
# Offsets into it are addresses. It spans all that there can be; only what is there may be touched.
_MEMORY: Any = (ctypes.c_char * (1 << 62)).from_address(0)
_START = 32  # NumPy takes an array at address 0 for one that is yet to be allocated


def getter(layout: str) -> Callable[[int], tuple[Any, ...]]:
    """A reader of the fields of a layout, in the words of `struct`, at an address."""
    return partial(Struct(f"={layout}").unpack_from, _MEMORY)


def setter(layout: str) -> Callable[..., None]:
    """A writer, to an address, of the fields of a layout.

    It raises `struct.error` or OverflowError for a number that does not fit; what it covers then
    holds the fields before that one, and zeros.
    """
    return partial(Struct(f"={layout}").pack_into, _MEMORY)


class Columns:
    """Numbers of one dtype that lie `stride` bytes apart, as NumPy views."""

    def __init__(self, dtype: npt.DTypeLike, stride: int) -> None:
        self.dtype = np.dtype(dtype)
        size = self.dtype.itemsize
        self._all: npt.NDArray[Any] = np.frombuffer(_MEMORY, dtype, (1 << 61) // size, _START)
        self._size = size
        self._step = stride // size

    def at(self, address: int, count: int) -> npt.NDArray[Any]:
        """The `count` numbers from an address on, which is a multiple of their size."""
        first = (address - _START) // self._size
        return self._all[first : first + count * self._step : self._step]
