"""Secrets of MCP servers: not in the configuration file, in answers or in logs.

Apart from `connection.py`, which brings the MCP library with it: a server without MCP needs none.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pie_py.config.mcp import McpServerConfig
from pie_py.config.variables import filled_in

HIDDEN = "***"
SHORTEST = 4  # characters: what is shorter is no secret, and stands in many texts


def with_secrets(name: str, config: McpServerConfig) -> McpServerConfig:
    """The operator's configuration of MCP server `name`, variables of the server's environment
    filled in.

    Raises:
        MissingVariable: naming the variable and where it stands.
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
