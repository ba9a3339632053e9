"""The errors that an inferlet or a client can cause, each with its stable code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from pie_py.wire.rpc import LATER

if TYPE_CHECKING:
    from pydantic import ValidationError

Code: TypeAlias = Literal[
    "invalid-argument",
    "invalid-handle",
    "unknown-model",
    "unsupported",
    "not-found",
    "already-exists",
    "not-ready",
    "out-of-resources",
    "page-full",
    "immutable",
    "swapped-out",
    "busy",
    "conflict",
    "would-block",
    "limit-exceeded",
    "cancelled",
    "failed-dependency",
    "worker-lost",
    "remote-failed",
    "timed-out",
    "permission-denied",
    "internal",
]


class ApiError(Exception):
    """An error that is a value to the guest or the client: `code: message`.

    The message says what was wrong, with which value, and how to mend it where that is known.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code: Code = code
        self.message = message


def invalid(message: str) -> ApiError:
    """The error `invalid-argument`."""
    return ApiError("invalid-argument", message)


def exceeded(message: str) -> ApiError:
    """The error `limit-exceeded`."""
    return ApiError("limit-exceeded", message)


def unsupported(message: str) -> ApiError:
    """The error `unsupported`."""
    return ApiError("unsupported", message)


def first_fault(error: ValidationError) -> str:
    """Where something is wrong in a value, and what."""
    fault = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


class Shortage(ApiError):
    """Others have it at present, as the end of its text tells clients."""

    def __init__(self, message: str, code: Code = "limit-exceeded") -> None:
        super().__init__(code, message + LATER)


class ProgramRejected(Exception):
    """An uploaded program that cannot run here; the text says why and how to mend it."""


class Refusal(Exception):
    """A refusal of an extension to its clients; its codes are no guest's to know."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


# Thousands of values are read in a millisecond; a million takes a second. Long texts do not matter.
MOST_VALUES = 20_000


def check_values(text: str, what: str, code: Code = "limit-exceeded") -> None:
    """Refuses a JSON text that may hold very many values: nothing else runs while one is read.
    What stands within its strings, such as a program's source, is no value.

    Raises:
        ApiError: of this code.
    """
    values = sum(map(text.count, ",[{"))
    if values <= MOST_VALUES:
        return
    outside = text.replace("\\\\", "").replace('\\"', "")
    if outside.count('"') <= 4 * MOST_VALUES:  # fewer values have no more strings and names
        outside = "".join(outside.split('"')[::2])
    values = sum(map(outside.count, ",[{"))
    if values > MOST_VALUES:
        raise ApiError(
            code,
            f"{what} with {values} commas and opening brackets; {MOST_VALUES} at most: give large"
            " data in fewer values, or in parts",
        )
