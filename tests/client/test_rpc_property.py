"""The client's session against the server's, in any interleaving and with lost connections."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.rpc_world import World

from pie_control.rpc import outgoing, session
from pie_control.rpc.sessions import Gone
from pie_py.client.errors import ConnectionLost

INSTANCES = ("a", "b", "c")


class Conversation(RuleBasedStateMachine):
    """Requests, streams, time and cuts as they come; at the end all must have arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(outgoing, "PROBE_BYTES", 200)
        self.patch.setattr(outgoing, "CONNECTION_BYTES", 1000)
        self.patch.setattr(outgoing, "USER_BYTES", 4000)
        self.patch.setattr(session, "WINDOW_BYTES", 64)
        self.patch.setattr(session, "FRAME_BYTES", 24)
        self.world = World()
        self.world.connect()
        self.world.settle()
        self.launched = {"a"}
        self.world.launch("a")
        self.world.settle()

    @rule(method=st.sampled_from(["now", "later"]))
    def ask(self, method: str) -> None:
        self.world.request(method)

    @rule(instance=st.sampled_from(INSTANCES))
    def launch(self, instance: str) -> None:
        if instance not in self.launched:
            self.launched.add(instance)
            self.world.launch(instance)

    @rule(place=st.integers(0, 5))
    def finish(self, place: int) -> None:
        working = self.world.server.working
        if working:
            self.world.server.finish(place % len(working))

    @rule(instance=st.sampled_from(INSTANCES), count=st.integers(1, 20))
    def say(self, instance: str, count: int) -> None:
        talker = self.world.server.talkers.get(instance)
        for _ in range(count if talker is not None and talker.ended is None else 0):
            assert talker is not None
            talker.say()

    @rule(instance=st.sampled_from(INSTANCES), count=st.integers(1, 20))
    def read(self, instance: str, count: int) -> None:
        for _ in range(count):
            self.world.take(instance)

    @rule(count=st.integers(1, 9))
    def client_sends(self, count: int) -> None:
        self.world.client_sends()
        for _ in range(count):
            self.world.server_receives()

    @rule(count=st.integers(1, 9))
    def server_sends(self, count: int) -> None:
        self.world.server_sends()
        for _ in range(count):
            self.world.client_receives()

    @rule(instance=st.sampled_from(INSTANCES), rounds=st.integers(1, 6))
    def exchange(self, instance: str, rounds: int) -> None:
        for _ in range(rounds):
            self.say(instance, 5)
            self.client_sends(3)
            self.server_sends(3)
            self.read(instance, 4)

    @rule()
    def cut(self) -> None:
        self.world.cut()

    @rule()
    def hello_again(self) -> None:
        """As after a silence: on the connection that there is."""
        self.world.client.disconnected()
        self.world.client.connected()

    @rule()
    def connect(self) -> None:
        self.world.connect()

    @rule(seconds=st.sampled_from([1, 3, 11]))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule()
    def away_for_long(self) -> None:
        self.world.cut()
        for _ in range(3):
            self.world.tick(70)

    @property
    def forgotten(self) -> bool:
        return any(isinstance(event, Gone) for event in self.world.server.events)

    @invariant()
    def no_request_is_done_twice(self) -> None:
        done = [value for value in self.world.server.done if value is not None]
        assert len(done) == len(set(done))

    def teardown(self) -> None:
        try:
            self._all_arrives()
        finally:
            self.patch.undo()

    def _all_arrives(self) -> None:
        world = self.world
        world.settle()
        for _ in range(2):
            world.tick(3)
            world.settle()
        for value, call in world.calls:
            assert call.done.is_set()
            if isinstance(call.answer, ConnectionLost):
                assert self.forgotten
            else:
                assert call.answer == value
        for instance, stream in world.streams.items():
            assert stream.error is None
            assert world.read.get(instance, 0) == world.server.talkers[instance].said
        if not self.forgotten:
            assert set(world.streams) == self.launched


Conversation.TestCase.settings = settings(max_examples=100, stateful_step_count=60)
TestConversation = pytest.mark.slow(Conversation.TestCase)
