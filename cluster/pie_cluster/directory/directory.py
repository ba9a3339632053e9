"""The directory of a cluster: which nodes there are, and where launches go. A state machine.

It does no I/O. Its owner hands in messages and the time (a monotonic clock), sends the answers, and
carries out what `due` tells. Nothing here must survive: a directory that is restarted asks every
node for all it has, and is whole after one round of reports.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from pie_cluster.directory.leases import GONE_SECONDS, SILENT_SECONDS, Leases
from pie_cluster.directory.node import Life, Node, State, life_of
from pie_cluster.directory.policies import Launch, Policy, choose
from pie_cluster.directory.table import MOST_NODES, Table
from pie_cluster.wire.messages import (
    ACCEPTED_PROTOCOLS,
    CLUSTER_PROTOCOL,
    WAITS,
    Fenced,
    Join,
    JoinAgain,
    NodeFacts,
    Renewed,
    Report,
    ToNode,
    export_key,
    prefix_key,
    program_key,
)
from pie_control.errors import Refusal
from pie_py.config.processes import LOAD_SECONDS
from pie_py.wire.methods import FIRST_TOKENS

START_SECONDS = LOAD_SECONDS + 60.0  # for a life to join that has begun; then it is forgotten
LOST = "lost"  # the state of a node whose life is over, and none follows
MOST_ENDED = 4 * MOST_NODES  # names of nodes that are gone, whose lives are remembered


class PlacementRequest(NamedTuple):
    """A launch that looks for a node.

    Attributes:
        near: the id of an instance of the cluster, or the name of an export of the user.
        avoid: lives where it may not go, because an id is of one run there, or they refused it.
        prefixes: hashes of its prompt's beginnings, as `pie_py.wire.methods` makes them.
    """

    user: str
    program: str
    near: str | None = None
    avoid: Sequence[str] = ()
    prefixes: Sequence[str] = ()


class Location(NamedTuple):
    """A node that serves, and how it is reached."""

    life: Life
    endpoint: str
    public_key: str

    def described(self) -> dict[str, str]:
        """As clients are told of it."""
        return {"node": str(self.life), "endpoint": self.endpoint, "key": self.public_key}


class Over(NamedTuple):
    """A life that is gone: what is left of it is to end, and its node's next life to start, unless
    that is drained.
    """

    life: Life
    is_drained: bool


@dataclass(frozen=True)
class _Start:
    """A life that has begun and not joined."""

    life: Life
    since: float
    reason: str


class Directory:
    """Answers nodes, places launches, and tells which lives are over."""

    def __init__(self, policy: Policy, random: Random, now: float) -> None:
        self.keys = 0  # another number whenever users' keys may have been removed; its owner says
        self.settings = 0  # the version of the cluster's settings; its owner says
        self._policy = policy
        self._random = random
        self._began = now
        self._table = Table()
        self._leases = Leases(now)
        self._draining: dict[Node, float] = {}  # until when
        self._ended: OrderedDict[str, int] = OrderedDict()  # the last life of nodes that are gone
        self._removed: OrderedDict[str, None] = (
            OrderedDict()
        )  # of these, which are not to come back
        self._starting: OrderedDict[str, _Start] = OrderedDict()  # by node
        self._lost: OrderedDict[str, _Start] = OrderedDict()  # whose life is over, and none follows
        self._over: list[Over] = []

    # Nodes

    def last(self, node: str) -> int:
        """The highest number that a life of this node is known to have had; 0 if none is known."""
        known, start = self._table.find(node), self._starting.get(node)
        return max(
            self._ended.get(node, 0),
            0 if known is None else known.life.incarnation,
            0 if start is None else start.life.incarnation,
        )

    def check_wanted(self, node: str) -> None:
        """Whether another life of a node may begin; the present one is over. Raises `Refusal`:
        `drained` if the node was drained. One that hears of it late, because its drain was short or
        it was cut off, is told here.
        """
        known = self._table.find(node)
        if known is not None and (over := _after(known)).is_drained:
            self._end(known, over)
        if node in self._removed:
            raise Refusal("drained", f"{node} is drained and has no other life")

    def begin(self, life: Life, reason: str, now: float) -> None:
        """A life is about to start, whose number is above `last`: so the one before is over,
        whatever it still says, for that reason.
        """
        self._look(now)
        known = self._table.find(life.node)
        if known is not None:
            self._end(known)
        self._starting.pop(life.node, None)
        self._lost.pop(life.node, None)
        self._starting[life.node] = _Start(life, now, reason)
        if len(self._starting) > MOST_NODES:
            self._starting.popitem(last=False)

    def join(self, message: Join, sender: bytes, now: float) -> ToNode:
        """A life begins, or tells all again. The sender is the key that its connection has proved;
        only it may report for this life.
        """
        self._look(now)
        known = self._table.find(message.node)
        reason = self._unfit(message, sender, known)
        if reason is not None:
            return Fenced(reason)
        node = Node(message, sender, now)
        until = None if message.drain_ms is None else now + message.drain_ms / 1000
        if known is not None:
            self._leases.drop(known)
            self._draining.pop(known, None)
            if known.life == node.life and known.drain_until is not None:
                until, node.again = known.drain_until, known.again
        if until is not None:
            self._drain(node, until)
        self._ended.pop(message.node, None)
        self._lost.pop(message.node, None)
        start = self._starting.get(message.node)
        if start is not None and start.life <= node.life:
            del self._starting[message.node]
        self._table.add(node, now)
        self._table.learn(node, message.cached)
        self._table.export(node, message.exports)
        self._leases.renew(node, now)
        return self._renewed(node, now)

    def report(self, message: Report, sender: bytes, now: float) -> ToNode:
        """A life tells what has changed; its lease is renewed."""
        self._look(now)
        node = self._table.find(message.node)
        life = Life(message.node, message.incarnation)
        if node is None or node.life.incarnation < life.incarnation:
            if life.incarnation <= self._ended.get(life.node, 0):
                return Fenced(f"{life} has been replaced or removed")
            return JoinAgain()
        if node.life != life or node.sender != sender:
            return Fenced(f"{life} is not the life of {life.node} that has joined")
        if message.number != node.report + 1:
            return JoinAgain()
        node.report = message.number
        node.settings = message.settings
        node.silent = False
        if message.drain_ms is not None and node.drain_until is None:
            self._drain(node, now + message.drain_ms / 1000)
        self._table.learn(node, message.cached)
        self._table.export(node, message.exported, message.released)
        self._table.take(node, message.load, now)
        self._leases.renew(node, now)
        if message.drain_ms is not None and not message.load.instances:
            self._end(node, _after(node))
        return self._renewed(node, now)

    def _renewed(self, node: Node, now: float) -> Renewed:
        until = _milliseconds(node, now)
        return Renewed(node.report, until, self.keys, node.again, self.settings)

    def have_old_settings(self) -> bool:
        """True if a node that answers has not reported the present version of the settings."""
        states = State.READY, State.DRAINING
        return any(n.settings != self.settings for n in self._table if n.state in states)

    def drain(self, name: str, seconds: float, now: float, again: bool = False) -> None:
        """A node takes no more; it is removed when it is empty, or `seconds` from now; or has
        another life then, if it is to begin `again`. Raises `Refusal`: `not-found`; `invalid` if no
        other node would take launches.
        """
        self._look(now)
        node = self._table.find(name)
        if node is None:
            raise Refusal(
                "not-found", f"no node is called {name!r:.60}; `pie-py cluster status` lists them"
            )
        if self._table.ready == 1 and node.state is State.READY:
            raise Refusal(
                "invalid",
                f"{name} is the last node that takes launches; add another one first,"
                " or end the cluster with `pie-py cluster down`",
            )
        self._drain(node, now + seconds)
        node.again = again
        self._table.refresh(node, now)

    def due(self, now: float) -> list[Over]:
        """Lives that have ended since the last time; to be asked at least once per second."""
        self._look(now)
        for node in [node for node, until in self._draining.items() if until <= now]:
            self._end(node, _after(node))
        over, self._over = self._over, []
        return over

    def status(self, now: float) -> list[NodeFacts]:
        """All nodes, by name."""
        for start in list(self._starting.values()):
            if now - start.since > START_SECONDS and not start.reason.startswith(WAITS):
                del self._starting[start.life.node]  # with its machine, or the model is not loaded
                self._lose(start.life, start.since, start.reason or "it has not joined")
        nodes = [
            NodeFacts(
                *node.life,
                node.state.value,
                node.what.version,
                node.what.endpoint,
                node.instances,
                node.pool,
                node.waiting_seconds(now),
                now - node.heard,
                "",
                node.what.public_key,
            )
            for node in self._table
        ]
        nodes += [
            NodeFacts(*each.life, state, silent_seconds=now - each.since, reason=each.reason)
            for state, of in ((State.STARTING.value, self._starting), (LOST, self._lost))
            for each in of.values()
        ]
        return sorted(nodes, key=lambda node: (node.node, node.incarnation))

    # Launches

    def place(self, request: PlacementRequest, now: float) -> Location:
        """Where a launch goes. Raises `Refusal`: `near-gone` if what it is to be near to is gone or
        unknown; `busy` if no node has room; `not-found` if `near` names nothing that the user could
        mean; `starting` while a directory that was just started knows of no room.
        """
        self._look(now)
        launch = Launch(self._keys(request), now, self._beside(request, now))
        node = choose(self._policy, launch, self._table, self._random)
        if node is not None and str(node.life) in request.avoid:
            node = self._table.lightest_but(request.avoid)
        if node is None or not self._table.has_room(node):
            self._check_whole(now)
            raise Refusal("busy", self._why_none(request.avoid))
        self._table.place(node, launch.keys, now)
        return _location(node)

    def where(self, instance: str, now: float, *, broken: bool = False) -> Location:
        """The node that has an instance, in whatever state, or that of a life, for its client to
        connect to. If the client's connection to the node is `broken`, and the node has fallen
        silent here as well, that is enough to give it up.

        Raises `Refusal`: `node-lost` if that life has ended; `starting` while a directory that was
        just started cannot know; `not-found` of a text that is no id of a cluster.
        """
        self._look(now)
        node = self._node_of(instance, now)
        if broken and node.silent:
            raise Refusal(
                "node-lost", f"{instance}: node {node.life} answers neither you nor the directory"
            )
        return _location(node)

    def _keys(self, request: PlacementRequest) -> list[tuple[int, int]]:
        """What a launch may find cached: of its program, if nothing of its prompt is known."""
        if not request.prefixes:
            key = program_key(request.user, request.program)
            return [(key, self._table.expected(key))]
        keys = [prefix_key(request.user, digest) for digest in request.prefixes]
        return [(key, FIRST_TOKENS << doublings) for doublings, key in enumerate(keys)][::-1]

    def _beside(self, request: PlacementRequest, now: float) -> Sequence[Node]:
        """The nodes that a launch asks for."""
        if request.near is not None and "@" in request.near:
            try:
                return (self._node_of(request.near, now),)
            except Refusal as refusal:
                if refusal.code != "node-lost":
                    raise
                raise Refusal(
                    "near-gone", f"near={request.near}: its node has ended; launch without near"
                ) from None
        if request.near is not None:
            nodes = self._table.exporters(export_key(request.user, request.near))
            if not nodes:
                self._check_whole(now)
                raise Refusal(
                    "near-gone",
                    f"near={request.near!r:.80}: no node has an export of yours of this name;"
                    " launch without near, and export it again",
                )
            return nodes
        return ()

    def _node_of(self, asked: str, now: float) -> Node:
        life = life_of(asked)
        node = self._table.find(life.node)
        if node is not None and node.life == life:
            return node
        last = self._ended.get(life.node, 0) if node is None else node.life.incarnation
        if life.incarnation > last:
            self._check_whole(now)
        raise Refusal("node-lost", f"{asked}: node {life} has ended or never was")

    def _check_whole(self, now: float) -> None:
        """A directory that has just started may not have heard of all nodes. Raises `Refusal`:
        `starting`.
        """
        if now - self._began < SILENT_SECONDS:
            raise Refusal("starting", "the directory has just started; ask again")

    def _why_none(self, avoid: Sequence[str]) -> str:
        if not len(self._table):
            return "the cluster has no node yet; `pie-py cluster status` tells what is missing"
        if not self._table.ready:
            return (
                "no node takes launches: all drain, are silent or have no worker; see `pie-py"
                " cluster status`"
            )
        others = f" beside {', '.join(avoid)}" if avoid else ""
        return f"the nodes{others} have no room; try again when instances have ended, or add nodes"

    # Lives

    def _unfit(self, message: Join, sender: bytes, known: Node | None) -> str | None:
        """Why a node must not join; None if it may."""
        life = Life(message.node, message.incarnation)
        if message.protocol not in ACCEPTED_PROTOCOLS:
            return (
                f"{life} (pie_py {message.version}) speaks protocol {message.protocol} of nodes,"
                f" this cluster {CLUSTER_PROTOCOL}; install the same version of pie_py"
            )
        last, start = self.last(life.node), self._starting.get(life.node)
        has_begun = start is not None and start.life == life  # it was given its number just now
        is_over = life.incarnation < last or (known is None and life.incarnation == last)
        if is_over and not has_begun:
            return f"{life} is over: life {last} of {life.node} has been seen"
        if known is not None and known.life == life and known.sender != sender:
            return f"{life} has joined with another key: one name was given twice"
        if known is None and len(self._table) >= MOST_NODES:
            return f"the cluster has {MOST_NODES} nodes, the most that there may be"
        return None

    def _look(self, now: float) -> None:
        if not self._leases.is_due(now):
            return
        silent, gone = self._leases.take(now)
        for node in silent:
            node.silent = True
            self._table.refresh(node, now)
        for node in gone:
            self._end(node, _after(node))

    def _drain(self, node: Node, until: float) -> None:
        node.drain_until = self._draining[node] = until

    def _end(self, node: Node, over: Over | None = None) -> None:
        self._leases.drop(node)
        self._draining.pop(node, None)
        self._table.remove(node)
        self._ended[node.life.node] = node.life.incarnation
        if len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)
        if over is None:
            return
        self._over.append(over)
        if not over.is_drained:
            self._lose(node.life, node.heard, f"it has said nothing for {GONE_SECONDS:g} s")
        else:
            self._removed[node.life.node] = None
            if len(self._removed) > MOST_ENDED:
                self._removed.popitem(last=False)

    def _lose(self, life: Life, since: float, reason: str) -> None:
        self._lost[life.node] = _Start(life, since, reason)
        if len(self._lost) > MOST_ENDED:
            self._lost.popitem(last=False)

    def forget(self, name: str) -> None:
        """A node has left with its machine: it is not looked for."""
        if (node := self._table.find(name)) is not None:
            self._end(node)
        for of in (self._starting, self._lost):
            of.pop(name, None)


def _after(node: Node) -> Over:
    """What follows when this life ends."""
    return Over(node.life, node.drain_until is not None and not node.again)


def _location(node: Node) -> Location:
    return Location(node.life, node.what.endpoint, node.what.public_key)


def _milliseconds(node: Node, now: float) -> int | None:
    """What is left of a drain."""
    if node.drain_until is None:
        return None
    return max(0, int((node.drain_until - now) * 1000))
