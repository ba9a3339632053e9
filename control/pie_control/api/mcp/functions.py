"""Calls of instances to the tools of MCP servers.

`registry` knows which user may use which server, `server` holds one of them alive, `connection`
speaks to it by the official SDK, over `stdio` or `streamable`.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
import trio

from pie_control.api.mcp.registry import McpRegistry
from pie_control.api.mcp.server import Action, McpServer
from pie_control.data_folder import SettingsFolder
from pie_control.errors import ApiError, check_values, exceeded, invalid
from pie_control.instances.futures import Future, FutureKind
from pie_control.tasks import Service, take_off
from pie_py.config.http import HttpConfig
from pie_py.config.mcp import McpConfig, redacted

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance

log = structlog.get_logger("pie.mcp")

# Of nesting in arguments. Servers with the official SDK read 200, with those around the arguments,
# and say nothing to what is deeper.
MOST_LEVELS = 100
MAX_TOOL = 256  # characters of a tool's name
INSTANCE_CALLS = 16  # under way
USER_CALLS = 64  # under way, of all instances of one user


class McpServers(Service):
    """Calls tools for instances. Servers that it has started end with it."""

    def __init__(
        self, config: McpConfig, http: HttpConfig | None = None, folder: Path | None = None
    ) -> None:
        """Takes what the operator lets programs reach, which holds for the servers of clients, too;
        and a folder for what clients register.

        Raises:
            MissingVariable: the configuration names a variable that is not there.
        """
        settings = SettingsFolder(folder, "user", "name", "fields")
        self.registry = McpRegistry(config, http or HttpConfig(), self._start_task, settings)
        self._calls: Counter[str] = Counter()  # under way, by instance
        self._user_calls: Counter[str] = Counter()

    # Trait `mcp`

    def mcp_servers(self, instance: Instance) -> list[str]:
        """Names of the servers that the instance's user may use."""
        return list(self.registry.usable(instance.user))

    def mcp_list_tools(self, instance: Instance, server: str) -> int:
        """Asks a server for its tools and returns the handle of the future of them.

        Raises:
            ApiError: `not-found`, `limit-exceeded`.
        """
        found = self.registry.find(instance.user, server)
        return self._call(instance, found, "tools", lambda connection: connection.list_tools())

    def mcp_call_tool(self, instance: Instance, server: str, tool: str, arguments: str) -> int:
        """Calls a tool and returns the handle of the future of its answer.

        Raises:
            ApiError: `not-found`, `invalid-argument`, `limit-exceeded`.
        """
        found = self.registry.find(instance.user, server)
        if len(arguments) > instance.limits.message_bytes:
            raise exceeded(
                f"arguments of {len(arguments)} characters; {instance.limits.message_bytes} at most"
            )
        if len(tool) > MAX_TOOL:
            raise ApiError("not-found", f"no tool has a name of over {MAX_TOOL} characters")
        parsed = _parse(arguments)
        return self._call(
            instance, found, tool, lambda connection: connection.call_tool(tool, parsed)
        )

    def is_repeatable(self, instance: Instance, server: str, tool: str) -> bool:
        """True if a tool has said, as it was listed, that a second call changes nothing more."""
        found = self.registry.usable(instance.user).get(server)
        return found is not None and tool in found.repeatable

    # Calls

    def _call(self, instance: Instance, server: McpServer, what: str, action: Action) -> int:
        if self._calls[instance.id] >= INSTANCE_CALLS:
            raise exceeded(f"{INSTANCE_CALLS} calls are under way; wait for some first")
        if self._user_calls[instance.user] >= USER_CALLS:
            raise exceeded(f"{USER_CALLS} calls of this user are under way, in all instances")
        future = instance.futures.create_outside(FutureKind.TEXT, f"mcp {server.name} {what}"[:256])
        self._calls[instance.id] += 1
        self._user_calls[instance.user] += 1
        scope = trio.CancelScope()
        future.on_cancel = scope.cancel
        limit = instance.limits.message_bytes

        async def run() -> None:
            try:
                await _carry_out(server, action, scope, future, limit)
            finally:
                take_off(self._calls, instance.id)
                take_off(self._user_calls, instance.user)

        self._start_task(run)
        return future.handle

    @property
    def calls(self) -> int:
        """Calls under way, of all instances."""
        return self._calls.total()


async def _carry_out(
    server: McpServer, action: Action, scope: trio.CancelScope, future: Future, limit: int
) -> None:
    """Gives a future its text or its error. Raises nothing."""
    began = trio.current_time()
    text, error = "", None

    def connected() -> None:  # the start has a time limit of its own
        nonlocal began
        began = trio.current_time()
        scope.deadline = began + server.config.call_seconds

    with scope:
        try:
            text = await server.call(action, connected)
            size = len(text)  # JSON in ASCII
            if size > limit:
                error = exceeded(f"{server.name} answers with {size} bytes; {limit} at most")
        except ApiError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001  whatever a server does is an error value
            trace = redacted("".join(traceback.format_exception(caught)), server.config)
            log.error("an MCP call failed", name=server.name, trace=trace)
            text = redacted(f"{type(caught).__name__}: {caught}", server.config)
            error = ApiError("internal", f"{server.name}: {text}")
    if scope.cancelled_caught:
        error = ApiError(
            "timed-out",
            f"the MCP server {server.name} has not answered in {server.config.call_seconds:g} s",
        )
        if trio.current_time() >= scope.deadline:
            server.suspect(began)
    if error is None:
        future.resolve(text)
    else:
        future.fail(error)


def _parse(arguments: str) -> dict[str, Any]:
    """Arguments of a tool. Raises ApiError `invalid-argument`, `limit-exceeded`."""
    check_values(arguments, "arguments")
    try:
        parsed = json.loads(arguments, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the arguments are no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise invalid(f"the arguments are a JSON {type(parsed).__name__}, not an object")
    if _is_deeper(parsed, MOST_LEVELS):
        raise invalid(f"the arguments are nested deeper than {MOST_LEVELS} levels")
    # All instances share a server's connection, and what cannot be written to it would break it.
    try:
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise invalid(f"the arguments cannot be written: {error}") from None
    return parsed


def _is_deeper(value: Any, levels: int) -> bool:
    """True if lists and objects of JSON are nested in more levels."""
    level = [value]
    for _ in range(levels):
        items = (within.values() if isinstance(within, dict) else within for within in level)
        level = [item for item in chain.from_iterable(items) if isinstance(item, dict | list)]
    return bool(level)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
