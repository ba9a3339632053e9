"""Nodes of a cluster without Ray: gateway and control processes, for users with keys."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import zmq

from pie_cluster.directory.asking import Directory
from pie_py.client.sync import Client
from pie_py.config.keys import ClientKey, KeyPair, KeyStore
from support.child_processes import ChildProcess
from support.clusters import SERVER, wait_for

PATIENCE_SECONDS = 120.0  # with a node that is stopped for some of them
HOST = "0.0.0.0"  # no loopback, so keys are asked for; all is on this machine


class Node(ChildProcess):
    """A control process as one life of a node."""

    def __init__(self, life: str, config: dict[str, Any], log: Path) -> None:
        super().__init__("pie_control", config, log)
        self.life = life

    def _first_line(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        while not {"ready", "error"} & told.keys():  # it may say before that it lives
            told = super()._first_line()
        return told


class Nodes:
    """A gateway with its directory, and nodes that share a data folder and a database.

    To be used in a `with`. Users have keys, so that there may be several.
    """

    def __init__(
        self, folder: Path, database: str, users: tuple[str, ...], host: str = HOST, **server: Any
    ) -> None:
        """Takes the gateway's host, and fields of the nodes' `ServerConfig`."""
        self._host = host
        self._folder = folder
        self._fields = server
        self.database = database
        self._stack = ExitStack()
        self._started: dict[str, Node] = {}  # the last life of each
        keys = KeyStore(folder / "data")
        self._users = {user: keys.add(user) for user in users}
        public, secret = zmq.curve_keypair()
        self._pair = KeyPair(public.decode(), secret.decode())
        self._token = folder / "token.json"
        secrets = {"member_public": self._pair.public, "member_secret": self._pair.secret}
        self._token.write_text(json.dumps(secrets))

    def __enter__(self) -> Self:
        config = {**self._server({}), "endpoint": f"tcp://{self._host}:*", "max_instances": 1}
        config["extension"]["settings"]["folder"] = str(self._folder / "lives")
        gateway = ChildProcess("pie_cluster.gateway", config, self._folder / "gateway.log")
        self.gateway = self._stack.enter_context(gateway).endpoint
        self.gateway_process = gateway.process
        self._public = KeyStore(self._folder / "data").server_pair().public
        key = ClientKey("member", self._pair.public, self._pair.secret, self._public)
        self.asked = Directory(self.gateway, key)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, **member: Any) -> Node:
        """Starts a node's next life; it may know another way to the gateway, or the database."""
        return self.start_all({name: member})[0]

    def start_all(self, nodes: dict[str, dict[str, Any]]) -> list[Node]:
        """Starts several, together: by name, fields of `MemberConfig`, a database of its own, and
        fields of `ServerConfig` as `server`.
        """
        lives = {name: self.asked.ask("begin", node=name) for name in nodes}

        def start(name: str) -> Node:
            asked = {"gateway": self.gateway, "gateway_key": self._public}
            member = {**asked, **nodes[name], "node": name, "incarnation": lives[name]}
            log = self._folder / f"{name}.log"
            return Node(f"{name}.{lives[name]}", self._server(member), log)

        with ThreadPoolExecutor(len(nodes)) as pool:
            started = list(pool.map(start, nodes))
        for node in started:
            self._started[node.life.partition(".")[0]] = node
            self._stack.callback(node.process.wait)
            self._stack.callback(node.process.kill)
        wait_for(lambda: nodes.keys() <= self.ready())
        return started

    def find(self, node: str) -> Node:
        """A node by its name, or that of its life."""
        return self._started[node.partition(".")[0]]

    def kill(self, node: str) -> None:
        """Kills a node by its name, or that of its life."""
        process = self.find(node).process
        process.kill()
        process.wait()

    def begin(self, node: Node) -> None:
        """A life is over, and the next one of its node begins, as its keeper says."""
        self.asked.ask("begin", node=node.life.partition(".")[0])

    def drain(self, node: str) -> None:
        """Drains a node, by the name of its life, so that another life may begin."""
        self.asked.ask("drain", node=node.partition(".")[0], seconds=600.0, again=True)
        self.find(node).process.wait(60)

    def ready(self) -> set[str]:
        """The names of nodes that take launches."""
        return {node.node for node in self.asked.nodes() if node.state == "ready"}

    def client(self, node: Node, user: str) -> Client:
        """Of a user, of one node, for which it waits; to be used in a `with`."""
        return Client(node.endpoint, key=self._users[user], patience=PATIENCE_SECONDS)

    def key(self, user: str) -> ClientKey:
        """Of a user."""
        return self._users[user]

    def _server(self, member: dict[str, Any]) -> dict[str, Any]:
        database = member.pop("database", self.database)
        of_all = {"token": str(self._token)}
        return {
            **SERVER,
            **self._fields,
            **member.pop("server", {}),
            "endpoint": f"tcp://{HOST}:*",
            "data_folder": str(self._folder / "data"),
            "store": {"database": database},
            "extension": {"name": "cluster", "settings": {**of_all, **member}},
        }
