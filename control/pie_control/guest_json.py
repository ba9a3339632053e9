"""Reads JSON of a guest within bounds, because nothing else runs in this process meanwhile."""

from __future__ import annotations

from pie_control.errors import ApiError, Code

# Thousands of values are read in a millisecond; a million takes a second. Long texts do not matter.
MOST_VALUES = 20_000


def check_values(text: str, what: str, code: Code = "limit-exceeded") -> None:
    """Refuses a text that may hold very many values.

    Raises:
        ApiError: of this code.
    """
    values = sum(map(text.count, ",[{"))
    if values > MOST_VALUES:
        raise ApiError(
            code,
            f"{what} with {values} commas and opening brackets; {MOST_VALUES} at most: give large"
            " data in fewer values, or in parts",
        )
