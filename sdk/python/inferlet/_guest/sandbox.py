"""Replaces whatever would ask an operating system: what can be given comes from the host, the rest
raises a Python exception that says why.

Without it such a call would trap, which ends the instance and which no program can catch.
"""

from __future__ import annotations

import _io
import _signal  # type: ignore[import-not-found]
import _socket
import _symtable  # type: ignore[import-not-found]
import _thread
import argparse
import asyncio.events
import builtins
import gc
import importlib
import importlib.machinery
import io
import json
import os
import posix
import queue
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import tokenize
import traceback
import types
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from inferlet._guest import clock, compiling, locks
from inferlet._guest.streams import LogStream, NoInput, no_input
from inferlet._loop import HostLoop
from inferlet.runtime import random_bytes

NO_FILES = (
    "an inferlet has no file system: pass data as arguments or with session.receive_blob(), and"
    " send it with session.send_blob()"
)
NO_NETWORK = "an inferlet has no network of its own: talk to the client with inferlet.session"
NO_PROCESSES = (
    "an inferlet has one thread and one process: run tasks with asyncio.gather, or another inferlet"
    " with runtime.launch"
)
NO_SIGNALS = "an inferlet gets no signals"
NO_MODULE = (
    "it is not part of the Python runtime of pie_py; `pie-py build FILE.py --package NAME` makes a"
    " component that has it (pure Python packages only); a module of yours lies beside the program"
)
NO_SYSTEM = "this part of the standard library needs an operating system, which an inferlet has not"

MOST_NESTED = 3000  # lists and objects of JSON that fit the stack, which is C's
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)
DEEPEST = 10_000  # Python calls that fit the stack; deeper ones would trap

# Functions of `posix` that only compute.
_HARMLESS = {
    "DirEntry", "WCOREDUMP", "WEXITSTATUS", "WIFCONTINUED", "WIFEXITED", "WIFSIGNALED",
    "WIFSTOPPED", "WSTOPSIG", "WTERMSIG", "_clearenv", "_create_environ", "_path_normpath",
    "_path_splitroot_ex", "error", "fspath", "putenv", "stat_result", "statvfs_result", "strerror",
    "terminal_size", "times_result", "uname_result", "unsetenv", "waitstatus_to_exitcode",
}  # fmt: skip
_PURE_SOCKET = {
    "CMSG_LEN", "CMSG_SPACE", "error", "gaierror", "has_ipv6", "herror", "htonl", "htons",
    "inet_aton", "inet_ntoa", "inet_ntop", "inet_pton", "ntohl", "ntohs", "timeout",
}  # fmt: skip
# Built-in modules that reach for clocks, files or file descriptors from C.
_HIDDEN = {"_datetime", "_lsprof", "_sqlite3", "_tracemalloc", "_zoneinfo", "faulthandler"}


class Finder:
    """The only finder: modules in the component are imported already, others can't be."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds built-in and frozen modules; explains the absence of others."""
        if name.partition(".")[0] not in _HIDDEN:
            for finder in (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter):
                spec: importlib.machinery.ModuleSpec | None = finder.find_spec(name)
                if spec is not None:
                    return spec
        if sys._getframe(2).f_code.co_name == "find_spec":
            return None  # importlib.util.find_spec: a test for its presence
        top = name.partition(".")[0]
        why = NO_SYSTEM if top in sys.stdlib_module_names else NO_MODULE
        raise ModuleNotFoundError(f"No module named {name!r}: {why}", name=name)

    @staticmethod
    def invalidate_caches() -> None:
        """Nothing is cached."""


def _refusing(name: str, reason: str, error: type[Exception] = PermissionError) -> Any:
    """A function that raises."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise error(f"{name}: {reason}")

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse


def _refusing_class(original: type, name: str, reason: str) -> type:
    """A class that raises when it is called, and stays the base of what was derived from it."""

    def refuse(cls: type, *_: object, **__: object) -> NoReturn:
        raise PermissionError(f"{name}: {reason}")

    return type(original.__name__, (original,), {"__new__": refuse})


def _urandom(size: int, /) -> bytes:
    if size < 0:
        raise ValueError("negative argument not allowed")
    return random_bytes(size)


_c_seed = random.Random.seed
_json_raw_decode = json.JSONDecoder.raw_decode
_c_set_recursion_limit = sys.setrecursionlimit


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    _c_seed(self, int.from_bytes(_urandom(32)) if a is None else a, version)


def _exit(status: int = 0, /) -> NoReturn:
    raise SystemExit(status)


def _terminal_size(*_: object) -> NoReturn:
    raise OSError("an inferlet has no terminal")


class Finished(SystemExit):
    """The program has said all it has to say, as after `--help`."""

    def __init__(self, text: str) -> None:
        super().__init__(0)
        self.text = text


def _usage_error(self: argparse.ArgumentParser, message: str) -> NoReturn:
    raise SystemExit(f"{self.format_usage()}{self.prog}: error: {message}")


def _print_help(self: argparse.ArgumentParser, file: Any = None) -> None:
    if file is None:
        raise Finished(self.format_help())
    self._print_message(self.format_help(), file)


def _breakpoint(*_: object, **__: object) -> None:
    """Opens the debugger that `pie-py run` sends with a program that has a `breakpoint()`."""
    try:
        debugger = importlib.import_module("pie_debugger")
    except ModuleNotFoundError:
        raise RuntimeError(
            "breakpoint: there is no debugger; `pie-py run FILE.py` opens pdb here"
        ) from None
    debugger.set_trace(sys._getframe(1))


def _set_recursion_limit(limit: int, /) -> None:
    if limit > DEEPEST:
        raise ValueError(f"{limit} calls deep: the stack of an inferlet has room for {DEEPEST}")
    _c_set_recursion_limit(limit)


def _raw_decode(self: json.JSONDecoder, s: str, idx: int = 0) -> tuple[Any, int]:
    """As the library's, but what is nested too deeply for the stack raises."""
    if s.count("[", idx) + s.count("{", idx) > MOST_NESTED:
        depth = 0
        for match in _BRACKETS.finditer(s, idx):
            depth += 1 if match[0] in "[{" else -1 if match[0] in "]}" else 0
            if depth > MOST_NESTED:
                raise RecursionError(f"JSON nested more than {MOST_NESTED} levels deep")
    return _json_raw_decode(self, s, idx)


def _gc_set_debug(flags: int, /) -> None:
    if flags:
        raise RuntimeError("gc.set_debug: not available in an inferlet")


def _excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    traceback.print_exception(kind, error, trace)


def _unraisablehook(unraisable: Any) -> None:
    print(f"{unraisable.err_msg or 'Exception ignored in'}: {unraisable.object!r}", file=sys.stderr)
    traceback.print_exception(unraisable.exc_value)


def _replacements() -> Iterable[tuple[Any, str, Any]]:
    """Module, name and what takes its place."""
    for name, value in clock.REPLACEMENTS.items():
        if hasattr(time, name):
            yield time, name, value
    for name, value in compiling.REPLACEMENTS.items():
        yield builtins, name, value
    yield _symtable, "symtable", compiling.symtable
    special = {
        "_exit": _exit,
        "abort": _refusing("os.abort", "raise an exception instead", RuntimeError),
        "cpu_count": lambda: 1,
        "device_encoding": lambda fd: None,
        "get_terminal_size": _terminal_size,
        "getcwd": lambda: "/",
        "getcwdb": lambda: b"/",
        "getpid": lambda: 1,
        "getppid": lambda: 0,
        "isatty": lambda fd: False,
        "times": lambda: posix.times_result((0.0, 0.0, 0.0, 0.0, clock.REPLACEMENTS["time"]())),
        "uname": lambda: posix.uname_result(("wasi", "inferlet", "0", "0", "wasm32")),
        "urandom": _urandom,
    }
    for name, value in vars(posix).items():
        if name in special:
            yield posix, name, special[name]
        elif callable(value) and name not in _HARMLESS and not isinstance(value, type):
            yield posix, name, _refusing(f"os.{name}", NO_FILES)
    for name in ("open", "open_code"):
        yield _io, name, _refusing("open", NO_FILES)
    yield _io, "FileIO", _refusing_class(io.FileIO, "io.FileIO", NO_FILES)
    for name, value in vars(_socket).items():
        if name in ("socket", "SocketType"):
            continue
        if callable(value) and name not in _PURE_SOCKET and not isinstance(value, type):
            yield _socket, name, _refusing(f"socket.{name}", NO_NETWORK)
    yield socket, "socket", _refusing_class(socket.socket, "socket.socket", NO_NETWORK)
    for name in ("select", "poll"):
        if hasattr(select, name):
            yield select, name, _refusing(f"select.{name}", NO_NETWORK)
    for name, value in vars(_signal).items():
        if isinstance(value, types.BuiltinFunctionType) and name not in ("default_int_handler",):
            yield _signal, name, _refusing(f"signal.{name}", NO_SIGNALS, RuntimeError)
    yield signal, "getsignal", lambda number: None
    for name in ("signal", "sigwait", "pthread_kill", "pthread_sigmask"):
        if hasattr(signal, name):
            yield signal, name, _refusing(f"signal.{name}", NO_SIGNALS, RuntimeError)
    yield sys, "setrecursionlimit", _set_recursion_limit
    yield json.JSONDecoder, "raw_decode", _raw_decode
    yield tokenize, "_generate_tokens_from_c_tokenizer", compiling.generate_tokens
    for name in ("start_new_thread", "start_new", "start_joinable_thread"):
        yield _thread, name, _refusing("threading", NO_PROCESSES, RuntimeError)
    yield subprocess.Popen, "__init__", _refusing("subprocess", NO_PROCESSES)
    yield _thread, "allocate_lock", locks.Lock
    yield _thread, "allocate", locks.Lock
    yield _thread, "lock", locks.Lock
    yield _thread, "RLock", threading._PyRLock  # type: ignore[attr-defined]
    yield threading, "Lock", locks.Lock
    yield threading, "_CRLock", threading._PyRLock  # type: ignore[attr-defined]
    yield queue, "SimpleQueue", queue._PySimpleQueue  # type: ignore[attr-defined]
    yield gc, "set_debug", _gc_set_debug
    yield uuid, "getnode", lambda: int.from_bytes(_urandom(6)) | 1 << 40
    yield uuid, "_generate_time_safe", None
    yield uuid, "_UuidCreate", None
    yield asyncio.events, "new_event_loop", HostLoop
    yield builtins, "input", no_input
    yield sys, "breakpointhook", _breakpoint
    yield sys, "excepthook", _excepthook
    yield sys, "unraisablehook", _unraisablehook
    yield threading, "excepthook", lambda args: _excepthook(*args[:3])


def seal() -> tuple[LogStream, LogStream]:
    """Replaces everything, in every module that has been imported. The last step of the build.

    Returns:
        The streams that stand for standard output and standard error.
    """
    changed: dict[int, tuple[object, Any]] = {}
    for module, name, new in list(_replacements()):
        old = getattr(module, name)
        if old is not None:
            changed[id(old)] = (old, new)
        setattr(module, name, new)
    os.system = _refusing("os.system", NO_PROCESSES)
    _replace_everywhere(changed)
    random.Random.seed = _seed  # type: ignore[method-assign]
    random.seed = random._inst.seed  # bound to the old one so far
    argparse.ArgumentParser.error = _usage_error  # type: ignore[method-assign]
    argparse.ArgumentParser.print_help = _print_help  # type: ignore[method-assign]
    sys.meta_path[:] = [Finder]
    sys.path[:] = []
    sys.path_hooks[:] = []
    sys.path_importer_cache.clear()
    for name in _HIDDEN:
        sys.modules.pop(name, None)
    out, err = LogStream("<stdout>", "info"), LogStream("<stderr>", "error")
    sys.stdout = sys.__stdout__ = out  # type: ignore[assignment,misc]
    sys.stderr = sys.__stderr__ = err  # type: ignore[assignment,misc]
    sys.stdin = sys.__stdin__ = NoInput()  # type: ignore[assignment,misc]
    os.environ.clear()
    os.environ.update({"HOME": "/", "LANG": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "80"})
    return out, err


def _replace_everywhere(changed: dict[int, tuple[object, Any]]) -> None:
    """Replaces what modules hold because of `from time import sleep` and the like."""
    ours = {id(vars(clock)), id(vars(compiling)), id(vars(locks)), id(globals())}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if names is None or id(names) in ours:
            continue
        for name, value in list(names.items()):
            entry = changed.get(id(value))
            if entry is not None and entry[0] is value:
                names[name] = entry[1]
            elif isinstance(value, types.FunctionType):
                _replace_defaults(value, changed)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                _replace_in_class(value, changed)


def _replace_in_class(cls: type, changed: dict[int, tuple[object, Any]]) -> None:
    for name, value in list(vars(cls).items()):
        entry = changed.get(id(value))
        if entry is not None and entry[0] is value:
            setattr(cls, name, entry[1])
        elif isinstance(value, types.FunctionType):
            _replace_defaults(value, changed)


def _replace_defaults(function: types.FunctionType, changed: dict[int, tuple[object, Any]]) -> None:
    defaults = function.__defaults__ or ()
    if any(id(value) in changed for value in defaults):
        function.__defaults__ = tuple(
            changed[id(value)][1] if id(value) in changed else value for value in defaults
        )


def start(file: str, args: Sequence[str]) -> None:
    """Does what each instance needs for itself: its randomness and its arguments."""
    random.seed()
    sys.argv = [file, *args]
