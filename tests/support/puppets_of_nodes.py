"""Instances on the nodes of a cluster that call what a test tells them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psycopg

from pie_control.errors import ApiError
from pie_py.client.errors import ClientError
from pie_py.client.sync import Client, Instance
from support.bus_rules import Handle
from support.clusters import wait_for
from support.nodes import Node, Nodes

SOURCE = Path(__file__).parent.parent / "cluster/guests/puppet.py"
CALL_SECONDS = 60.0
NUMBERS = itertools.count()  # of calls


class InstanceLost(Exception):
    """The instance has ended, or its node."""


class Puppet:
    """One instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._number = 0

    def call(self, name: str, *args: Any) -> Any:
        """Calls a function of the contract; raises ApiError."""
        self.begin(name, *args)
        return self.finish()

    def begin(self, name: str, *args: Any) -> None:
        """Has it begin a call."""
        self._number = next(NUMBERS)
        self.instance.send(json.dumps([self._number, name, *args]))

    def finish(self) -> Any:
        """What the call returns; raises ApiError."""
        number = -1
        while number != self._number:  # another client may not have told that it has read
            try:
                told = self.instance.receive(timeout=CALL_SECONDS)
            except ClientError as error:
                raise InstanceLost from error
            if not isinstance(told, str):
                raise InstanceLost
            number, answer = json.loads(told)
        if "error" in answer:
            code, _, message = answer["error"].partition(": ")
            raise ApiError(code, message)
        return answer["ok"]

    def end(self) -> None:
        """Ends the instance."""
        self.instance.send("end")
        assert self.instance.result() == "done"


class WorldOfNodes:
    """The world of the bus's rules on several nodes: each launch goes to the next one.

    To be used in a `with`.
    """

    patience = 20.0

    def __init__(self, nodes: Nodes, on: Sequence[Node]) -> None:
        self._nodes = nodes
        self._nodes_used = on
        self._on = itertools.cycle(on)
        self._stack = ExitStack()
        self._clients: dict[tuple[str, str], Client] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def puppet(self, node: Node, user: str) -> Puppet:
        """An instance on a node."""
        return Puppet(self.client(node, user).launch("puppet"))

    def client(self, node: Node, user: str) -> Client:
        """Of a node, for as long as the world."""
        client = self._clients.get((node.life, user))
        if client is None:
            client = self._stack.enter_context(self._nodes.client(node, user))
            self._clients[node.life, user] = client
            client.upload(SOURCE.read_bytes(), name="puppet")
        return client

    def launch(self, user: str = "ann") -> Puppet:
        return self.puppet(next(self._on), user)

    def id(self, who: Puppet) -> str:
        return who.instance.id

    def end(self, who: Puppet) -> None:
        who.end()

    def call(self, who: Puppet, name: str, *args: Any) -> Any:
        return who.call(name, *args)

    def cancel(self, who: Puppet, future: Handle) -> None:
        who.call("cancel", future)

    def ready(
        self, who: Puppet, futures: Sequence[Handle], *, most: int | None = None
    ) -> list[Handle]:
        end = time.monotonic() + self.patience
        while True:
            found: list[Handle] = who.call("ready", futures, 0) if futures else []
            wanted = len(futures) if most is None else most
            if len(found) >= wanted or time.monotonic() > end:
                return sorted(found)

    def settle(self) -> None:
        for node in self._nodes_used:  # a cancelled pull is told behind all that its node gave up
            puppet = self.puppet(node, "ann")
            puppet.call("cancel", puppet.call("pull", "settling"))
            puppet.end()

    def left(self) -> int:
        """Rows about topics in the database: none is left of a user of whom nothing is."""
        wait_for(lambda: not self._rows())
        return self._rows()

    def _rows(self) -> int:
        tables = ("users", "members", "boxes", "waits", "messages")
        with psycopg.connect(self._nodes.database) as sql:
            return sum(
                len(sql.execute(f"SELECT 1 FROM bus_{table}".encode()).fetchall())
                for table in tables
            )
