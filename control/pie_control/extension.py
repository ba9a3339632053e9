"""The seam where another package extends a server. It is found by its entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

import trio

from pie_control.programs.store import ProgramStore
from pie_control.rpc.auth import Users
from pie_control.rpc.requests import Fetch
from pie_control.wiring import Scope, Wiring
from pie_py.config.server import ServerConfig

GROUP = "pie_py.extensions"  # of entry points: each loads as a function of a `ServerConfig`


class ExtensionMissing(Exception):
    """No installed package is the extension that the configuration names."""


class Role:
    """Duties of a server in addition to serving. One by itself has none."""

    is_one_of_many = False  # it is sent launches once it runs, which others could take
    users: Users | None = None  # and their keys; None: those of its data folder
    fetch: Fetch | None = None  # has a program sent here

    def __init__(self, wiring: Wiring, programs: ProgramStore) -> None:
        self._registry = wiring.registry

    async def run(self, endpoint: str, stop: trio.Event) -> None:
        """Runs next to the server, which listens at `endpoint` and ends once `stop` is set."""

    def end_instances(self) -> None:
        """Ends the instances that are left: the server ends."""
        self._registry.end_all("the server stops")


@dataclass(frozen=True)
class Extension:
    """An extension of a server; the defaults extend nothing."""

    scope: Scope = field(default_factory=Scope)
    facts: Mapping[str, object] = field(default_factory=dict)  # of the server, part of each welcome
    role: Callable[[Wiring, ProgramStore], Role] = Role


def load_extension(config: ServerConfig) -> Extension:
    """The extension that a configuration names, or none.

    Raises:
        ExtensionMissing: if it is not installed.
    """
    if config.extension is None:
        return Extension()
    name = config.extension.name
    for entry in entry_points(group=GROUP, name=name):
        extend: Callable[[ServerConfig], Extension] = entry.load()
        return extend(config)
    raise ExtensionMissing(
        f"this server has no extension {name!r}: install the package that has it"
    )
