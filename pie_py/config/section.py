"""The base of every section of a server's configuration."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Fields of one subject: unknown ones are errors, and nothing changes after start."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The class of a field's section, or of the sections in its list or table; None if the field is
    a value.
    """
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None
