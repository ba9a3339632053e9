"""Host functions, bound to Wasmtime's C API by a callback made for each one's signature."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

import structlog
from wasmtime import WasmtimeError
from wasmtime import component as wasm

from pie_control.errors import ApiError
from pie_control.wasm import symbols
from pie_control.wasm.engine import Component, Engine
from pie_control.wasm.inspection import check_component, interface_name
from pie_control.wasm.symbols import setter
from pie_control.wasm.types import Type, signature
from pie_control.wasm.values import (
    Reader,
    Scratch,
    Writer,
    reader,
    result_writer,
    write_failure,
    writer,
)

log = structlog.get_logger("pie.wasm")

SUSPENDED: Any = object()  # what a host function returns to suspend its guest
MOST_ERROR = 16 << 10  # characters of an error: what a guest has passed may be in it
CLOSED = b"the instance has been closed"


@dataclass(frozen=True)
class HostFunction:
    """One function of the contract.

    `call(state, *args)` gets the state of the guest that calls. It returns the value, or raises
    `ApiError`, which a fallible function (`result<T, string>`) gives to the guest as its error.
    With `suspends` it may return `SUSPENDED`: the guest then waits until `Guest.resume`.
    """

    interface: str
    name: str
    params: tuple[Type, ...]
    result: Type | None
    fallible: bool
    call: Callable[..., Any]
    suspends: bool = False

    @property
    def full_name(self) -> str:
        """As messages and journals name it."""
        return f"{self.interface}.{self.name}"


class HostCalls:
    """The calls of host functions by one guest."""

    def __init__(self, state: Any) -> None:
        self.state = state  # that host functions get
        self.closing = False  # host functions see it: the guest ends at the next one's return
        # The call in which it waits: where its answer goes, and what writes it or its failure.
        self.pending: tuple[int, Writer, Failure] | None = None
        self.on_answer: Callable[[Any], None] | None = None  # gets that call's answer
        self.escaped: BaseException | None = None  # what a host function raised that is no error
        self.fault: bytes | None = None  # why an answer could not be given
        self.gate = Gate()

    def resume(self, value: Any) -> None:
        """Answers the suspended call; an `ApiError` becomes the guest's error."""
        if self.pending is None:
            raise RuntimeError("the guest does not wait")
        if self.on_answer is not None:
            self.on_answer(value)
            self.on_answer = None
        results, write, fail = self.pending
        try:
            if isinstance(value, ApiError):
                raise value
            write(results, value)
        except BaseException as error:  # noqa: BLE001  nothing may be raised through Wasmtime
            self.fault = fail(self, results, error)
        self.pending = None
        self.gate.open()


class Turn:
    """The guest that runs at the moment. One for the process: guests run on one thread."""

    __slots__ = ("guest",)

    def __init__(self) -> None:
        self.guest: HostCalls | None = None


turn = Turn()


class Linker:
    """The functions that guests may import, defined before the first guest is made."""

    def __init__(self, engine: Engine, functions: Sequence[HostFunction] = ()) -> None:
        self.engine = engine
        self._linker = wasm.Linker(engine.engine)
        self.address = ctypes.cast(self._linker.ptr(), c_void_p).value or 0
        self._scratch = Scratch()
        self._callbacks: list[Any] = []  # what the C side calls must stay alive
        self.offer: dict[str, dict[str, str]] = {}  # signatures by interface and function
        self.define(functions)

    def define(self, functions: Sequence[HostFunction]) -> None:
        """Offers functions to guests. Those of one interface must all be given at once."""
        offer: dict[str, dict[str, str]] = {}
        with self._linker.root() as root:
            for interface in dict.fromkeys(function.interface for function in functions):
                with root.add_instance(interface_name(interface)) as instance:
                    for function in functions:
                        if function.interface == interface:
                            self._add(instance, function)
                            offer.setdefault(interface, {})[function.name] = signature(
                                function.params, function.result, fallible=function.fallible
                            )
        self.offer.update(offer)
        self.engine.offer = self.offer

    def offers_as(self, other: Linker) -> None:
        """Offers functions of the same types as another one: what that admits need not be looked
        at again."""
        self.offer = self.engine.offer = other.offer

    def admit(self, component: Component) -> None:
        """Makes sure that a component imports only what is offered, with the same types.

        Raises:
            ProgramRejected: if it does not.
        """
        if component.checked is not self.offer:
            check_component(component.compiled, self.engine.engine, self.offer)
            component.checked = self.offer

    def _add(self, instance: wasm.LinkerInstance, function: HostFunction) -> None:
        if function.suspends:
            add, callback = symbols.linker_add_async_call, self._async_callback(function)
        else:
            add, callback = symbols.linker_add_call, self._callback(function)
        self._callbacks.append(callback)
        name = function.name.encode()
        address = ctypes.cast(callback, c_void_p)
        error = add(instance.ptr(), name, len(name), address, None, None)
        if error:
            raise WasmtimeError(symbols.take_error(error))

    def _callback(self, function: HostFunction) -> Any:
        call, read, write, fail = self._parts(function)

        def host_call(
            env: int, context: int, kind: int, args: int, nargs: int, results: int, nresults: int
        ) -> int:
            guest: Any = turn.guest
            try:
                write(results, call(guest.state, *read(args)))
                return 0 if not guest.closing else symbols.error_new(CLOSED)
            except BaseException as error:  # noqa: BLE001  nothing may be raised through Wasmtime
                trap = fail(guest, results, error)
                return 0 if trap is None else int(symbols.error_new(trap))

        return symbols.HostCall(host_call)

    def _async_callback(self, function: HostFunction) -> Any:
        call, read, write, fail = self._parts(function)

        def host_call(
            env: int,
            context: int,
            kind: int,
            args: int,
            nargs: int,
            results: int,
            nresults: int,
            error_slot: int,
            continuation: int,
        ) -> None:
            guest: Any = turn.guest
            try:
                value = call(guest.state, *read(args))
                if value is SUSPENDED:
                    guest.pending = results, write, fail
                    guest.gate.shut()
                    _set_continuation(continuation, _IS_OPEN, guest.gate.address)
                    return
                write(results, value)
                if guest.closing:
                    _set_address(error_slot, symbols.error_new(CLOSED))
            except BaseException as error:  # noqa: BLE001  nothing may be raised through Wasmtime
                trap = fail(guest, results, error)
                if trap is not None:
                    _set_address(error_slot, symbols.error_new(trap))
            _set_continuation(continuation, _IS_OPEN, _OPEN.address)

        return symbols.AsyncHostCall(host_call)

    def _parts(self, function: HostFunction) -> tuple[Callable[..., Any], Reader, Writer, Failure]:
        """The parts of a function that its callback needs, looked up once."""
        read, fail = reader(function.params), Failure(function, self._scratch)
        if function.fallible:
            return function.call, read, result_writer(function.result, self._scratch), fail
        if function.result is None:
            return function.call, read, lambda slot, value: None, fail
        return function.call, read, writer(function.result), fail


def failure_text(name: str, error: Exception) -> str:
    """The text that a guest gets for a host function's exception."""
    text = str(error)
    if not isinstance(error, ApiError):
        text = f"internal: {name} failed: {type(error).__name__}: {text}"
    return text if len(text) <= MOST_ERROR else f"{text[:MOST_ERROR]}…"


class Failure:
    """Makes a host function's exception the guest's error, or the end of the guest."""

    def __init__(self, function: HostFunction, scratch: Scratch) -> None:
        self._name = function.full_name
        self._fallible = function.fallible
        self._scratch = scratch

    def __call__(self, guest: HostCalls, results: int, error: BaseException) -> bytes | None:
        """Gives the guest its error; or returns the text of the trap that must end it."""
        if not isinstance(error, Exception):
            guest.escaped = error  # Ctrl-C and the like: `poll` raises it again
            return b"interrupted"
        try:
            if not isinstance(error, ApiError):
                log.error("a host function failed", function=self._name, exc_info=error)
            text = failure_text(self._name, error)
            if guest.closing:
                return CLOSED
            if self._fallible:
                symbols.val_delete(results)  # what was written before it failed
                write_failure(results, text, self._scratch)
                return None
            return text.encode(errors="replace").replace(b"\0", b"?")  # a C string
        except Exception:  # noqa: BLE001  such as an exception whose text cannot be made
            return f"internal: {self._name} failed".encode()


class Gate:
    """Asked by a suspended guest at every poll: whether it may go on.

    Wasmtime calls a C function with an address for that. libc's `strlen` of a string that is empty
    while the gate is shut, and has one character when it is open, is the answer as C's `bool` and
    saves a call of Python.
    """

    __slots__ = ("_string", "address")

    def __init__(self) -> None:
        self._string = ctypes.create_string_buffer(b"x")
        self.address = ctypes.addressof(self._string)

    def open(self) -> None:
        """It may."""
        self._string[0] = b"x"

    def shut(self) -> None:
        """It may not, until `open`."""
        self._string[0] = b"\0"


_set_address = setter("Q")
_set_continuation = setter("QQ")  # the callback and what it is called with
_IS_OPEN = ctypes.cast(ctypes.CDLL(None).strlen, c_void_p).value
_OPEN = Gate()
