"""Variables of the environment: settings, and `${NAME}` in texts, which keep secrets out."""

from __future__ import annotations

import os
import re

PREFIX = "PIE_PY_"  # of the variables of the environment that are settings
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class MissingVariable(ValueError):
    """A text names a variable that the environment does not have."""


def filled_in(text: str, place: str) -> str:
    """The text with the values of each `${NAME}`. Raises `MissingVariable`, with the place."""

    def value(found: re.Match[str]) -> str:
        try:
            return os.environ[found[1]]
        except KeyError:
            raise MissingVariable(
                f"{place} refers to ${{{found[1]}}}, which is not in the environment"
            ) from None

    return _VARIABLE.sub(value, text)
