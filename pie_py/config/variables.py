"""`${NAME}` in texts: secrets stay in the environment, out of files and of command lines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class MissingVariable(ValueError):
    """A text names a variable that the environment does not have."""


def filled_in(text: str, place: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with the variables' values in the place of each `${NAME}`.

    Raises:
        MissingVariable: naming the variable and the place.
    """

    def value(found: re.Match[str]) -> str:
        try:
            return environment[found[1]]
        except KeyError:
            raise MissingVariable(
                f"{place} refers to ${{{found[1]}}}, which is not in the environment"
            ) from None

    return _VARIABLE.sub(value, text)
