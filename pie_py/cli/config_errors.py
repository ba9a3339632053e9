"""Errors of a configuration, in words that name the file, the variable or the field."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from pydantic_settings import SettingsError

_PREFIX = "PIE_PY_"  # of the environment's variables, as ServerConfig has it


@contextmanager
def config_errors(file: Path | None = None) -> Iterator[None]:
    """Within it a wrong configuration, from a file or not, is a usage error.

    Raises:
        click.UsageError: naming what is wrong.
    """
    import tomllib

    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    try:
        yield
    except ValidationError as error:
        fields = {} if file is None else tomllib.loads(file.read_text(encoding="utf-8"))
        faults = [_fault(fault, file, fields) for fault in error.errors(include_url=False)]
        raise click.UsageError("the configuration is wrong: " + "; ".join(faults)) from None
    except SettingsError as error:
        raise click.UsageError(_bad_variable(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise click.UsageError(f"{file}: {error}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{file} is no TOML file: it is not UTF-8 ({error.reason} at byte {error.start})"
        ) from None


def _fault(fault: ErrorDetails, file: Path | None, fields: dict[str, Any]) -> str:
    """What is wrong with one field, and where it comes from: a variable, the file, or an option.

    Args:
        fault: as pydantic found it.
        file: the configuration file, if there is one.
        fields: what is in the file.
    """
    place = ".".join(map(str, fault["loc"]))
    variable = f"{_PREFIX}{'__'.join(map(str, fault['loc']))}".upper()
    if variable in os.environ and os.environ[variable] == fault["input"]:
        place = variable
    elif _is_in(fields, fault):
        place = f"{file}: {place}"
    return f"{place}: {fault['msg'].removeprefix('Value error, ')}"


def _is_in(fields: Any, fault: ErrorDetails) -> bool:
    """Whether a file's fields have what is wrong."""
    try:
        for key in fault["loc"]:
            fields = fields[key]
    except (KeyError, IndexError, TypeError):
        return False
    return bool(fields == fault["input"])


def _bad_variable(error: SettingsError) -> str:
    """The error of a variable that should hold JSON, without its text: it may be a secret."""
    cause = error.__cause__
    if not isinstance(cause, json.JSONDecodeError):
        return f"the environment's {_PREFIX} variables are wrong: {error}"
    names = [
        name
        for name, value in os.environ.items()
        if value == cause.doc and name.upper().startswith(_PREFIX)
    ]
    return (
        f"the environment's {' or '.join(names) or f'{_PREFIX} variables'} is no JSON: {cause};"
        f" write JSON, or single fields as {_PREFIX}LIMITS__MEMORY=1000000"
    )
