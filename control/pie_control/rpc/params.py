"""Reads a request's parameters, which a client may have got wrong in any way."""

from __future__ import annotations

from typing import Any, TypeVar

from pie_control.errors import ApiError

Value = TypeVar("Value")


class Params:
    """The parameters of one request. Every getter raises ApiError `invalid-argument`."""

    def __init__(self, method: str, values: dict[str, Any]) -> None:
        self._method = method
        self._values = values

    def text(self, name: str) -> str:
        """A text."""
        return self._get(name, str, "a text")

    def data(self, name: str) -> bytes:
        """Bytes."""
        return self._get(name, bytes, "bytes")

    def flag(self, name: str) -> bool:
        """True or false; false if it is not there."""
        return self._get(name, bool, "true or false", False)

    def number(self, name: str, default: int | None = None) -> int:
        """A number from 0 on."""
        value = self._get(name, int, "a number", default)
        if value < 0:
            raise self._wrong(name, "a number from 0 on")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty if it is not there."""
        values = self._get(name, list, "a list of texts", [])
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, "a list of texts")
        return values

    def table(self, name: str) -> dict[str, str]:
        """Texts by names; empty if it is not there."""
        values = self._get(name, dict, "texts by names", {})
        if not all(isinstance(text, str) for item in values.items() for text in item):
            raise self._wrong(name, "texts by names")
        return values

    def has(self, name: str) -> bool:
        """Whether a parameter is there."""
        return self._values.get(name) is not None

    def is_text(self, name: str) -> bool:
        """Whether a parameter is a text rather than bytes."""
        return isinstance(self._values.get(name), str)

    def _get(self, name: str, kind: type[Value], what: str, default: Value | None = None) -> Value:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind):
            raise self._wrong(name, what)
        return value

    def _wrong(self, name: str, what: str) -> ApiError:
        return ApiError("invalid-argument", f"{self._method} needs {name!r} to be {what}")
