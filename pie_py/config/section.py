"""The base of every section of a server's configuration."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Fields of one subject: unknown ones are errors, and nothing changes after start."""

    model_config = ConfigDict(extra="forbid", frozen=True)
