"""Reads values of a config.json, with a clear reason for each bad one."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

from pie_inference.errors import LoadError

MOST = 1 << 31  # of any count
# What is looped over, or has a tensor each, before a checkpoint's tensors are looked at.
MOST_LOOPED = 1 << 12
LOOPED = (
    *("num_hidden_layers", "depth", "block_count", "max_window_layers", "sliding_window_pattern"),
    *("n_layer", "n_layers", "num_layers"),
    *("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "expert_count"),
)

MAX_EXPERTS = 1 << 16  # of all layers: twice those of the largest models

T = TypeVar("T")
U = TypeVar("U")


def check_loops(config: Mapping[str, Any], where: str = "config.json") -> None:
    """Raises `LoadError` if code that is not ours would loop over more than can be."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_loops(value, f"{where}, {key!r}")
        elif key in LOOPED and isinstance(value, int) and value > MOST_LOOPED:
            Fields(config, where).count(key)


class Fields:
    """The values of a config.json, or of a table in it; one of another kind is a `LoadError`."""

    def __init__(self, config: Mapping[str, Any], where: str = "config.json") -> None:
        """Reads from `config`; `where` names it in errors."""
        self._config = config
        self._where = where

    def has(self, key: str) -> bool:
        """True if it holds the key, be the value null."""
        return key in self._config

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number. Raises `LoadError` if it lacks and has no default, or is
        something else.
        """
        value = self._config.get(key)
        if value is None:
            value = default
        if value is None:
            raise LoadError(f"{self._where} lacks {key!r}")
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self._wrong(key, "a positive whole number")
        if value > (most := MOST_LOOPED if key in LOOPED else MOST):
            raise self._wrong(key, f"at most {most}")
        return value

    def whole(self, key: str, default: int) -> int:
        """A whole number, 0 or positive; 0 if the value is null."""
        if self.has(key) and self._config[key] in (0, None):
            return 0
        return self.count(key, default)

    def number(self, key: str, default: float) -> float:
        """A positive number."""
        value = self._config.get(key)
        if value is None:
            return default
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not 0 < value < math.inf:
            raise self._wrong(key, "a positive number")
        return float(value)

    def optional_count(self, key: str, default: int | None) -> int | None:
        """A positive whole number, or None if the value is null; the default if it lacks."""
        if not self.has(key):
            return default
        return None if self._config[key] is None else self.count(key)

    def optional_number(self, key: str, default: float | None) -> float | None:
        """A positive number, or None if the value is null; the default if it lacks."""
        if not self.has(key):
            return default
        return None if self._config[key] is None else self.number(key, 1.0)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return self._value(key, bool, "true or false", default)

    def text(self, key: str, default: str) -> str:
        """A text."""
        return self._value(key, str, "a text", default)

    def items(self, key: str) -> list[Any] | None:
        """A list, or None if it lacks or is null."""
        return self._value(key, list, "a list", None)

    def table(self, key: str) -> dict[str, Any]:
        """An object; an empty one if it lacks or is null."""
        return self._value(key, dict, "an object", {})

    def _value(self, key: str, kind: type[T], wanted: str, default: U) -> T | U:
        value = self._config.get(key)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self._wrong(key, wanted)
        return value

    def _wrong(self, key: str, wanted: str) -> LoadError:
        found = reprlib.repr(self._config.get(key))
        return LoadError(f"{self._where}: {key!r} is {found}, not {wanted}")
