"""`${NAME}` in a configuration: secrets stay in the server's environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from pie_py.config import McpServerConfig

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class MissingVariable(ValueError):
    """The configuration names a variable that the environment does not have."""


def with_secrets(name: str, config: McpServerConfig) -> McpServerConfig:
    """The configuration of MCP server `name`, its variables filled in.

    Raises:
        MissingVariable: naming the variable and where it stands.
    """
    return config.model_copy(
        update={
            key: {
                label: _expanded(value, f"mcp.servers.{name}.{key}.{label}")
                for label, value in values.items()
            }
            for key, values in (("env", config.env), ("headers", config.headers))
        }
    )


def _expanded(text: str, place: str, environment: Mapping[str, str] = os.environ) -> str:
    def value(found: re.Match[str]) -> str:
        try:
            return environment[found[1]]
        except KeyError:
            raise MissingVariable(
                f"{place} refers to ${{{found[1]}}}, which is not in the server's environment"
            ) from None

    return _VARIABLE.sub(value, text)
