"""Settings of MCP servers, whose tools inferlets call; and their secrets, which are not in the
configuration file, in answers or in logs.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from pie_py.config.section import Section, check_names
from pie_py.config.variables import filled_in


class McpServerConfig(Section):
    """One MCP server: a `command` that talks over its standard streams, or a `url`.

    `${NAME}` in values of `env` and `headers` stands for the server's environment variable, so that
    no secret need be in a file.
    """

    command: str | None = None  # that talks over its standard streams
    args: tuple[str, ...] = ()  # of the command
    env: dict[str, str] = Field(default_factory=dict)  # in addition to HOME, PATH and the like
    folder: Path | None = None  # where the command runs; the server's working folder by default
    url: str | None = None  # of streamable HTTP
    headers: dict[str, str] = Field(default_factory=dict)  # of requests to the URL
    users: tuple[str, ...] | None = None  # allowed users; all by default
    start_seconds: PositiveFloat = 30.0  # of CPU time, or of doing nothing, until it is there
    call_seconds: PositiveFloat = 60.0  # until a call is answered
    message_bytes: PositiveInt = 4 << 20  # one message from the server

    @model_validator(mode="after")
    def _is_one_kind(self) -> McpServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server has either a `command` or a `url`")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} does not start with http:// or https://")
        misplaced = ("headers",) if self.url is None else ("args", "env", "folder")
        for name in misplaced:
            if getattr(self, name):
                other = "url" if self.url is None else "command"
                raise ValueError(f"`{name}` goes with a `{other}`, which is not there")
        return self


class McpConfig(Section):
    """Tools of MCP servers that inferlets may call."""

    # By the names that programs use.
    servers: dict[str, McpServerConfig] = Field(default_factory=dict)
    # Servers that clients register for their own user, of one user. What [http] says of hosts and
    # addresses holds for their URLs.
    client_servers: NonNegativeInt = 8
    client_commands: bool = False  # whether they may be commands, which run on this machine

    _check_names = field_validator("servers")(check_names)


HIDDEN = "***"
SHORTEST = 4  # characters: what is shorter is no secret, and stands in many texts


def with_secrets(name: str, config: McpServerConfig) -> McpServerConfig:
    """The operator's configuration of MCP server `name`, variables of the server's environment
    filled in. Raises `MissingVariable`: naming the variable and where it stands.
    """
    return config.model_copy(
        update={
            key: {
                label: filled_in(value, f"mcp.servers.{name}.{key}.{label}")
                for label, value in values.items()
            }
            for key, values in (("env", config.env), ("headers", config.headers))
        }
    )


def redacted(text: str, config: McpServerConfig) -> str:
    """A text of errors without the values of headers and variables, and what follows the URL's
    path."""
    values = [*config.headers.values(), *config.env.values()]
    secrets = {*values, *(word for value in values for word in value.split())}
    if config.url is not None:
        parts = urlsplit(config.url)
        secrets |= {parts.query, *(pair.partition("=")[2] for pair in parts.query.split("&"))}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
    return text
