"""The MCP servers there are, and the users that may use them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import structlog
from pydantic import ValidationError

from pie_control.api.http.network import CheckedBackend, HttpPolicy
from pie_control.api.http.request import HEADER_BYTES, check_request
from pie_control.api.mcp.server import McpServer
from pie_control.data_folder import SettingsFolder
from pie_control.errors import ApiError, exceeded, invalid
from pie_py.config.http import HttpConfig
from pie_py.config.mcp import McpConfig, McpServerConfig, with_secrets
from pie_py.config.section import NAME

log = structlog.get_logger("pie.mcp")


class McpRegistry:
    """The operator's servers, and those that clients have registered for their own user.

    A client's server lies where the HTTP requests of its user's programs may go, and nowhere else:
    what the operator allows is checked for the name at once, and for the address at each
    connection.
    """

    def __init__(
        self,
        config: McpConfig,
        http: HttpConfig,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        settings: SettingsFolder,
    ) -> None:
        """Has the operator's servers, and those that clients have registered before. `http` says
        where clients' servers may be; `start` starts the tasks of connections.

        Raises:
            MissingVariable: the configuration names a variable that is not there.
        """
        self._config = config
        self._policy = HttpPolicy(http)
        self._backend = CheckedBackend(self._policy, 2 * HEADER_BYTES)
        self._start = start
        self._operators = {
            name: McpServer(name, with_secrets(name, server), start)
            for name, server in config.servers.items()
        }
        self._clients: dict[str, dict[str, McpServer]] = {}  # by user and name
        self._settings = settings
        for entry in settings.all():
            self._register_again(**entry)

    def usable(self, user: str) -> dict[str, McpServer]:
        """Servers that a user may use, by name, the operator's first."""
        open_to_user = {n: s for n, s in self._operators.items() if s.allows(user)}
        return open_to_user | self._clients.get(user, {})

    def find(self, user: str, name: str) -> McpServer:
        """A server that a user may use. Raises ApiError `not-found`."""
        usable = self.usable(user)
        if name not in usable:
            known = ", ".join(usable) or "there is none; operators and clients register them"
            raise ApiError("not-found", f"no MCP server {name[:100]!r} for {user}; known: {known}")
        return usable[name]

    def describe(self, user: str) -> list[dict[str, Any]]:
        """Servers as a user's clients see them: name, if it is their own, and URL or command."""
        mine = self._clients.get(user, {})
        return [
            {"name": name, "own": name in mine, "at": _place(server.config)}
            for name, server in self.usable(user).items()
        ]

    def bytes_of(self, user: str) -> int:
        """Bytes of the disk that a user's servers take. Reads the disk."""
        return sum(self._settings.bytes_of(user, name) for name in [*self._clients.get(user, ())])

    def register(self, user: str, name: str, **fields: Any) -> None:
        """Registers a server for one user, whose instances alone may use it.

        The fields are those of `McpServerConfig`, taken literally: the variables of the server's
        environment are none of the client's.

        Raises:
            ApiError: `invalid-argument`, `permission-denied`, `already-exists`, `limit-exceeded`,
                `out-of-resources` (the disk is full).
        """
        config = self._admitted(user, name, fields)
        self._settings.put(user, name, user=user, name=name, fields=fields)
        self._add(user, name, config)

    def _register_again(self, user: str, name: str, fields: dict[str, Any]) -> None:
        """Adds a server that was registered before a restart, if the operator still allows it."""
        try:
            self._add(user, name, self._admitted(user, name, fields))
        except ApiError as error:  # its text may hold the address, which may hold secrets
            log.warning(
                "an MCP server is not allowed any more", user=user, name=name, why=error.code
            )

    def _add(self, user: str, name: str, config: McpServerConfig) -> None:
        backend = None if config.url is None else self._backend
        self._clients.setdefault(user, {})[name] = McpServer(name, config, self._start, backend)

    def _admitted(self, user: str, name: str, fields: dict[str, Any]) -> McpServerConfig:
        """A server that a user may register.

        Raises:
            ApiError: as `register`, but for the disk.
        """
        if not re.fullmatch(NAME, name):
            raise invalid(f"{name[:100]!r}: a name has letters, digits, `_`, `-`, `.`, at most 64")
        try:
            config = McpServerConfig(**fields)
        except ValidationError as error:  # its own text has the values in it
            raise invalid(error.errors()[0]["msg"]) from None
        config = self._checked(config)
        mine = self._clients.get(user, {})
        if name in self.usable(user):
            whose = "you" if name in mine else "the operator"
            raise ApiError("already-exists", f"an MCP server {name!r} is registered by {whose}")
        if len(mine) >= self._config.client_servers:
            raise exceeded(
                f"{self._config.client_servers} MCP servers of a user (`client_servers` in [mcp]);"
                " remove one first"
            )
        return config

    def unregister(self, user: str, name: str) -> None:
        """Forgets a server that the user has registered; calls under way fail.

        Raises:
            ApiError: `not-found`, `permission-denied`.
        """
        mine = self._clients.get(user, {})
        if name not in mine:
            self.find(user, name)
            raise ApiError("permission-denied", f"MCP server {name!r} is the operator's")
        self._settings.remove(user, name)
        mine.pop(name).close("it is registered no more")
        if not mine:
            del self._clients[user]

    def _checked(self, config: McpServerConfig) -> McpServerConfig:
        """A client's server that may be reached, its URL in the form that was checked.

        Raises:
            ApiError: `permission-denied`, `invalid-argument`, `limit-exceeded`.
        """
        if not self._config.client_servers:
            raise ApiError(
                "permission-denied",
                "this server's operator lets clients register no MCP servers (`client_servers` in"
                " [mcp])",
            )
        if config.url is not None:
            headers = list(config.headers.items())
            checked = check_request(self._policy, "POST", config.url, headers, b"")
            return config.model_copy(update={"url": str(checked.url)})
        if not self._config.client_commands:
            raise ApiError(
                "permission-denied",
                "clients register MCP servers by URL; the operator allows commands with"
                " `client_commands = true` in [mcp]",
            )
        return config


def _place(config: McpServerConfig) -> str:
    """Where a server is, without what may be secret."""
    if config.url is None:
        return str(config.command)
    parts = urlsplit(config.url)
    return parts._replace(query="", fragment="", netloc=parts.netloc.rpartition("@")[2]).geturl()
