"""The directory of a cluster: which nodes there are, and where launches go. A state machine.

It does no I/O. Its owner hands in messages and the time (a monotonic clock), sends the answers, and
carries out what `due` tells. Nothing here must survive: a directory that is restarted asks every
node for all it has, and is whole after one round of reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from pie_cluster.directory.node import Life, Node, State, life_of
from pie_cluster.directory.table import MOST_NODES, Table, cached
from pie_cluster.wire.messages import (
    About,
    Fenced,
    JoinAgain,
    NodeFacts,
    Renewed,
    Report,
    ToNode,
    program_key,
)
from pie_control.errors import Refusal
from pie_py import __version__
from pie_py.config.processes import LOAD_SECONDS
from pie_py.wire.methods import FIRST_TOKENS, MOST_PREFIXES

SILENT_SECONDS = 3.0  # without a report: no placements
GONE_SECONDS = 10.0  # without a report: replaced
STILL_SECONDS = 1.5  # between two looks at leases, where the directory stood still itself
START_SECONDS = LOAD_SECONDS + 60.0  # for a life to join that has begun; then it is forgotten
LOST = "lost"  # the state of a node whose life is over, and none follows
# Of prompts whose first `FIRST` characters are alike, and not twice as many: on average.
ALIKE_TOKENS = [int(2**0.5 * FIRST_TOKENS) << doublings for doublings in range(MOST_PREFIXES)]
MOST_ABSENT = 4 * MOST_NODES  # nodes that are not there, whose lives are remembered


class PlacementRequest(NamedTuple):
    """A launch that looks for a node.

    Attributes:
        near: the id of an instance of the cluster, or of one that has ended.
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


@dataclass(frozen=True)
class _Absent:
    """A node that is not in the table.

    Attributes:
        life: its last one.
        state: "starting" or "lost"; empty if it is not looked for.
        has_joined: whether that life did.
    """

    life: Life
    state: str
    since: float
    reason: str = ""
    has_joined: bool = True


class Directory:
    """Answers nodes, places launches, and tells which lives are over."""

    def __init__(self, random: Random, now: float) -> None:
        self.document = 0  # the version of what nodes are to have; its owner says
        self._random = random
        self._began = now
        self._table = Table()
        self._looked = self._awake = now
        self._next = now  # before then no lease runs out
        self._absent: dict[str, _Absent] = {}
        self._over: list[Life] = []

    # Nodes

    def last(self, node: str) -> int:
        """The highest number that a life of this node is known to have had; 0 if none is known."""
        known, absent = self._table.find(node), self._absent.get(node)
        return max(one.life.incarnation if one else 0 for one in (known, absent))

    def begin(self, life: Life, reason: str, now: float) -> None:
        """A life is about to start, whose number is above `last`: so the one before is over,
        whatever it still says, for that reason.
        """
        self._look(now)
        known = self._table.find(life.node)
        if known is not None:
            self._end(known)
        self._leave_out(_Absent(life, State.STARTING.value, now, reason, has_joined=False))

    def report(self, message: Report, now: float) -> ToNode:
        """A life tells what has changed, or all; its lease is renewed."""
        self._look(now)
        node = self._table.find(message.node)
        life = Life(message.node, message.incarnation)
        if message.about is not None:
            reason = self._unfit(life, message.about, node)
            if reason is not None:
                return Fenced(reason)
            known, node = node, Node(life, message.about, message.load, now)
            if known is not None and known.life == life:
                node.drain_until, node.again = known.drain_until, known.again
            self._absent.pop(life.node, None)
            self._table.add(node)
        elif node is None or node.life.incarnation < life.incarnation:
            if node is None and life.incarnation <= self.last(life.node):
                return Fenced(f"{life} has been replaced or removed")
            return JoinAgain()
        elif node.life != life:
            return Fenced(f"{life} is not the life of {life.node} that has joined")
        node.document = message.document
        node.heard, node.silent = now, False
        if message.drain_ms is not None and node.drain_until is None:
            node.drain_until, node.again = now + message.drain_ms / 1000, message.again
        self._table.learn(node, message.cached, now)
        self._table.take(node, message.load, now)
        if message.drain_ms is not None and message.about is None and not message.load.instances:
            self._end(node, is_news=True)
        until = node.drain_until
        left = None if until is None else max(0, int((until - now) * 1000))
        return Renewed(left, self.document, node.again)

    def have_old_documents(self) -> bool:
        """True if a node that answers has not reported the present version."""
        states = State.READY, State.DRAINING
        return any(n.document != self.document for n in self._table if n.state in states)

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
        node.drain_until, node.again = now + seconds, again
        self._table.refresh(node)

    def due(self, now: float) -> list[Life]:
        """Lives that have ended since the last time; to be asked at least once per second."""
        self._look(now)
        for node in list(self._table):
            if node.drain_until is not None and node.drain_until <= now:
                self._end(node, is_news=True)
        over, self._over = self._over, []
        return over

    def status(self, now: float) -> list[NodeFacts]:
        """All nodes, by name."""
        shown = [one for one in self._absent.values() if one.state]
        for place, one in enumerate(shown):
            # With its machine, or the model is not loaded.
            if one.state != LOST and now - one.since > START_SECONDS:
                reason = one.reason or "it has not joined"
                shown[place] = replace(one, state=LOST, reason=reason)
                self._absent[one.life.node] = shown[place]
        nodes = [node.facts(now) for node in self._table]
        nodes += [
            NodeFacts(*each.life, each.state, silent_seconds=now - each.since, reason=each.reason)
            for each in shown
        ]
        return sorted(nodes, key=lambda node: (node.node, node.incarnation))

    # Launches

    def place(self, request: PlacementRequest, now: float) -> Location:
        """Where a launch goes. Raises `Refusal`: `near-gone` if what it is to be near to is gone or
        unknown; `busy` if no node has room; `not-found` if `near` names nothing that the user could
        mean; `starting` while a directory that was just started knows of no room.
        """
        self._look(now)
        keys, near = self._keys(request), request.near
        try:
            node = None if near is None else self._node_of(near, now)
        except Refusal as refusal:
            if refusal.code != "node-lost":
                raise
            raise Refusal("near-gone", f"near={near}: its node has ended; leave it out") from None
        if node is None or node not in self._table.room.places:
            node = cached(keys, now, self._table, self._random)
        if request.avoid and node is not None and str(node.life) in request.avoid:
            node = self._table.any_but(request.avoid, self._random)
        if node is None:
            self._check_whole(now)
            others = f" beside {', '.join(request.avoid)}" if request.avoid else ""
            raise Refusal(
                "busy",
                f"the nodes{others} have no room; try again when instances have ended, or add nodes"
                if self._table.ready
                else "the cluster has no node that takes launches; see `pie-py cluster status`",
            )
        self._table.place(node, keys, now)
        return Location(node.life, node.what.endpoint, node.what.public_key)

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
        return Location(node.life, node.what.endpoint, node.what.public_key)

    def _keys(self, request: PlacementRequest) -> list[tuple[int, int]]:
        """The hints of a launch: of its program, if nothing of its prompt is known."""
        if not request.prefixes:
            key = program_key(request.user, request.program)
            return [(key, self._table.expected(key))]
        user, alike = request.user, zip(request.prefixes, ALIKE_TOKENS, strict=False)
        return [(hash((user, digest)), tokens) for digest, tokens in alike][::-1]

    def _node_of(self, asked: str, now: float) -> Node:
        life = life_of(asked)
        node = self._table.find(life.node)
        if node is not None and node.life == life:
            return node
        if life.incarnation > self.last(life.node):
            self._check_whole(now)
        raise Refusal("node-lost", f"{asked}: node {life} has ended or never was")

    def _check_whole(self, now: float) -> None:
        """A directory that has just started may not have heard of all nodes. Raises `Refusal`:
        `starting`.
        """
        if now - self._began < SILENT_SECONDS:
            raise Refusal("starting", "the directory has just started; ask again")

    # Lives

    def _unfit(self, life: Life, about: About, known: Node | None) -> str | None:
        """Why a node must not join; None if it may."""
        if about.version != __version__:
            return (
                f"{life} is of pie_py {about.version}, this cluster of {__version__}; install the"
                " same version"
            )
        last, absent = self.last(life.node), self._absent.get(life.node)
        is_over = absent is not None and absent.has_joined and life == absent.life
        if is_over or life.incarnation < last:
            return f"{life} is over: life {last} of {life.node} has been seen"
        if known is None and len(self._table) >= MOST_NODES:
            return f"the cluster has {MOST_NODES} nodes, the most that there may be"
        return None

    def _look(self, now: float) -> None:
        """Looks at leases. A directory that has stood still itself has read no report meanwhile,
        and must not take that for the nodes' silence: all leases begin again.
        """
        if now - self._looked > STILL_SECONDS:
            self._awake = now
        self._looked = now
        if now < self._next:
            return
        self._next = now + SILENT_SECONDS  # for nodes that join
        for node in list(self._table):
            heard = max(node.heard, self._awake)
            if not node.silent and heard + SILENT_SECONDS <= now:
                node.silent = True
                self._table.refresh(node)
            end = heard + (GONE_SECONDS if node.silent else SILENT_SECONDS)
            if end <= now:
                self._end(node, is_news=True)
            else:
                self._next = min(self._next, end)

    def _end(self, node: Node, *, is_news: bool = False) -> None:
        """A life is over, of which others may have to hear: what is left of it is to end."""
        self._table.remove(node)
        absent = _Absent(node.life, "", node.heard)
        if is_news:
            self._over.append(node.life)
            if node.drain_until is None or node.again:
                reason = f"it has said nothing for {GONE_SECONDS:g} s"
                absent = replace(absent, state=LOST, reason=reason)
        self._leave_out(absent)

    def _leave_out(self, absent: _Absent) -> None:
        self._absent.pop(absent.life.node, None)
        self._absent[absent.life.node] = absent
        if len(self._absent) > MOST_ABSENT:
            del self._absent[next(iter(self._absent))]

    def forget(self, name: str) -> None:
        """A node has left with its machine, or is drained: it is not looked for."""
        if (node := self._table.find(name)) is not None:
            self._end(node)
        elif (absent := self._absent.get(name)) is not None:
            self._absent[name] = replace(absent, state="")
