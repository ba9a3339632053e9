"""Errors of a configuration, in words that name the file, the variable or the field."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pie_py.config.variables import PREFIX

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from pydantic_settings import SettingsError

# Variables that are no settings of a server: those of clients, and of parts of pie_py.
_OTHERS = {"ENDPOINT", "KEY", "KEEP_SERVER", "CLUSTER_FOLDER", "CONFINED_BYTES"}


@contextmanager
def config_errors(file: Path | None = None) -> Iterator[None]:
    """Within it a wrong configuration is a `click.UsageError`, which names what is wrong."""
    import tomllib

    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        fields = {} if file is None else tomllib.loads(file.read_text(encoding="utf-8-sig"))
        faults = [_fault(fault, file, fields) for fault in error.errors(include_url=False)]
        raise click.UsageError("the configuration is wrong: " + "; ".join(faults)) from None
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{file} is no TOML file: it is not UTF-8 ({error.reason} at byte {error.start})"
        ) from None
    except ValueError as error:
        from pydantic_settings import SettingsError  # takes long

        if isinstance(error, SettingsError):
            raise click.UsageError(_bad_variable(error)) from None
        if file is None:
            raise
        raise click.UsageError(f"{file}: {error}") from None  # no TOML, or a number too long


def _fault(fault: ErrorDetails, file: Path | None, fields: dict[str, Any]) -> str:
    """The fault of one field, as pydantic found it, and where it comes from: a variable, the
    file, or an option. `fields` is what is in the file.
    """
    place = ".".join(map(str, fault["loc"]))
    variable = f"{PREFIX}{'__'.join(map(str, fault['loc']))}".upper()
    if variable in os.environ and os.environ[variable] == fault["input"]:
        place = variable
    elif _is_in(fields, fault):
        place = f"{file}: {place}"
    if fault["type"] == "extra_forbidden":
        return f"{place}: {_unknown(fault['loc'])}"
    if fault["type"] == "tuple_type":
        name, is_table = fault["loc"][-1], isinstance(fault["input"], dict)
        wanted = f"a table of several: write [[{name}]]" if is_table else f"a list: {name} = [...]"
        return f"{place}: it is {wanted}"
    return f"{place}: {fault['msg'].removeprefix('Value error, ')}"


def _unknown(loc: tuple[int | str, ...]) -> str:
    """The hint for an unknown setting: the nearest one, or all of its section."""
    from pie_py.config.section import section_of
    from pie_py.config.server import ServerConfig

    section: Any = ServerConfig
    for part in loc[:-1]:
        field = section.model_fields.get(part)  # no field is a place in a list, or a name
        section = section if field is None else section_of(field.annotation)
    near = get_close_matches(str(loc[-1]), section.model_fields, 1)
    names = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(section.model_fields)}"
    return f"no such setting; {names}"


def refuse_misspelt_variables() -> None:
    """Raises `click.UsageError` if the environment has a variable that is nearly a setting's."""
    from pie_py.config.server import ServerConfig

    known = {name.upper() for name in ServerConfig.model_fields} | _OTHERS
    for variable in sorted(os.environ):
        name = variable.upper().removeprefix(PREFIX).partition("__")[0]
        if variable.upper().startswith(PREFIX) and name not in known:
            of_section = _with_two_lines(name)
            for near in [of_section] if of_section else get_close_matches(name, known, 1, 0.75):
                raise click.UsageError(
                    f"{variable} in the environment: no such setting; did you mean {PREFIX}{near}?"
                )


def _with_two_lines(name: str) -> str | None:
    """The variable of a section's field, of a name that has one line between the two."""
    from pie_py.config.section import Section
    from pie_py.config.server import ServerConfig

    for field, info in ServerConfig.model_fields.items():
        section: Any = info.annotation
        rest = name.removeprefix(f"{field.upper()}_")
        is_section = isinstance(section, type) and issubclass(section, Section)
        if is_section and rest != name and rest.lower() in section.model_fields:
            return f"{field.upper()}__{rest}"
    return None


def _is_in(fields: Any, fault: ErrorDetails) -> bool:
    """True if a file's fields have what is wrong."""
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
        return f"the environment's {PREFIX} variables are wrong: {error}"
    names = [
        name
        for name, value in os.environ.items()
        if value == cause.doc and name.upper().startswith(PREFIX)
    ]
    return (
        f"the environment's {' or '.join(names) or f'{PREFIX} variables'} is no JSON: {cause};"
        f" write JSON, or single fields as {PREFIX}LIMITS__MEMORY=1000000"
    )
