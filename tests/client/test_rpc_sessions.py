"""The rules of sessions, held against the state machine: no sockets, and time that a test sets."""

from __future__ import annotations

import os
from functools import partial

import pytest
from support.rpc_world import TIMING, Server, World

from pie_control.errors import ApiError
from pie_control.instances.instance import ClientPresence, InstanceEnded, InstanceState
from pie_control.rpc import outgoing, session, sessions
from pie_control.rpc.session import Presence, Session
from pie_control.rpc.sessions import GiveUp, Gone
from pie_py.client.calls import Call
from pie_py.client.errors import ConnectionLost, ServerUnreachable
from pie_py.client.stream import Stream
from pie_py.wire.rpc import (
    PROTOCOL,
    Ack,
    Bye,
    Closed,
    Ended,
    Failure,
    Hello,
    Items,
    Message,
    NotAMessage,
    Ping,
    Probe,
    Probed,
    Refused,
    Request,
    Response,
    Resume,
    Welcome,
    Who,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Server:
    return Server(clock)


def passes(server: Server, clock: Clock, seconds: float) -> None:
    """Time passes, and the server looks at its sessions."""
    clock.now += seconds
    server.act(list(server.sessions.tick()))


def greet(server: Server, peer: bytes = b"1", of: bytes = bytes(16), user: str = "local") -> bool:
    """Says hello on a connection; returns whether the session was known."""
    [welcome] = server.ask(peer, Hello(PROTOCOL, of, "a test"), user)
    assert isinstance(welcome, Welcome)
    return welcome.resumed


def launch(server: Server, peer: bytes = b"1", instance: str = "a", window: int = 256) -> None:
    """Launches an instance, after a hello where nobody has said one."""
    if not server.sessions.all:
        greet(server, peer)
    number = server.sessions.all[-1].highest + 1
    request = Request(number, 0, "launch", {"instance": instance, "window": window})
    [answer] = server.ask(peer, request)
    assert isinstance(answer, Response)


def read(server: Server, peer: bytes, most: int = 100) -> list[tuple[int, object]]:
    """The items that come to a connection, with their numbers."""
    found: list[tuple[int, object]] = []
    for _ in range(most):
        for message in server.sent(peer):
            if isinstance(message, Items):
                found += enumerate(message.items, message.first)
    return found


# Hello


def test_hello_comes_first_and_speaks_the_same_protocol(server: Server) -> None:
    assert server.ask(b"1", Request(1, 0, "now", {})) == [Who()]
    [refused] = server.ask(b"1", Hello(PROTOCOL + 1, bytes(16), "future"))
    assert isinstance(refused, Refused)
    assert "install the same version" in refused.message
    [refused] = server.ask(b"1", Hello(PROTOCOL, b"short", "?"))
    assert isinstance(refused, Refused)
    assert not greet(server)
    assert greet(server)


def test_no_more_sessions_than_the_server_keeps(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    greet(server, b"1", b"1" * 16)
    greet(server, b"2", b"2" * 16)
    [refused] = server.ask(b"3", Hello(PROTOCOL, b"3" * 16, "one too many"))
    assert isinstance(refused, Refused)
    assert refused.code == "busy"
    assert greet(server, b"4", b"2" * 16)


def test_sessions_belong_to_a_user(server: Server) -> None:
    assert not greet(server, b"1", bytes(16), "ann")
    assert not greet(server, b"2", bytes(16), "bob")
    assert greet(server, b"3", bytes(16), "ann")


@pytest.mark.parametrize(
    "claim", [Ping(), Request(1, 0, "now", {}), Probed(1), Bye("done"), NotAMessage("bad", 1)]
)
def test_who_claims_a_routing_id_gets_nothing_of_another_user(
    server: Server, claim: Message | NotAMessage
) -> None:
    greet(server, b"1", bytes(16), "ann")
    server.receive(b"1", Request(1, 0, "launch", {"instance": "a"}), "ann")
    server.receive(b"1", Request(2, 0, "later", {}), "ann")
    server.sent(b"1")
    server.receive(b"1", Ping(), "ann")  # its answer waits when the connection breaks
    if isinstance(claim, NotAMessage):
        server.sessions.receive_garbage(b"1", claim, "bob")
    else:
        server.receive(b"1", claim, "bob")
    server.finish()
    server.talkers["a"].say()
    assert server.sent(b"1") in ([Who()], [])
    assert not greet(server, b"1", bytes(16), "bob")
    assert greet(server, b"2", bytes(16), "ann")
    assert not greet(server, b"2", b"x" * 16, "bob")
    assert {one.user: one.presence for one in server.sessions.all if one.id == bytes(16)} == {
        "ann": Presence.CUT,
        "bob": Presence.PRESENT,
    }


def test_who_may_not_speak_ends_no_session_of_another_user(server: Server) -> None:
    greet(server, b"1", bytes(16), "ann")
    assert server.sessions.refuse(b"1", "removed", "bob") == ()
    assert isinstance(server.sent(b"1")[0], Refused)
    assert greet(server, b"2", bytes(16), "ann")
    [gone] = server.sessions.refuse(b"2", "removed", "ann")
    assert isinstance(gone, Gone)


def test_what_a_user_has_not_read_is_not_charged_to_who_claims_the_routing_id(
    server: Server,
) -> None:
    greet(server, b"1", bytes(16), "ann")
    server.ask(b"1", Request(1, 0, "now", {"value": BLOB}), "ann")
    assert server.sessions.backlog.behind(b"1") > len(BLOB)
    greet(server, b"1", bytes(16), "bob")
    assert server.sessions.backlog.user_of(b"1") == "bob"
    assert server.sessions.backlog.behind(b"1") < len(BLOB)


def test_another_session_on_a_connection_takes_it_from_the_first(server: Server) -> None:
    greet(server, b"1", b"a" * 16)
    launch(server)
    server.receive(b"1", Request(2, 0, "later", {}))
    greet(server, b"1", b"b" * 16)
    server.talkers["a"].say()
    server.finish()
    assert server.sent(b"1") == []
    assert [one.presence for one in server.sessions.all] == [Presence.CUT, Presence.PRESENT]


# Requests


def test_request_numbers_begin_with_1_and_grow(server: Server) -> None:
    greet(server)
    assert isinstance(server.ask(b"1", Request(5, 0, "now", {}))[0], Response)
    for number in (0, -1, 4):
        [answer] = server.ask(b"1", Request(number, 0, "now", {}))
        assert isinstance(answer, Failure)
        assert "numbers begin with 1 and grow" in answer.message


def test_an_answer_that_is_confirmed_is_forgotten_and_a_request_given_up_stops(
    server: Server,
) -> None:
    greet(server)
    server.ask(b"1", Request(1, 0, "now", {}))
    server.ask(b"1", Request(2, 0, "later", {}))
    [one] = server.sessions.all
    assert one.answer_bytes > 0
    server.ask(b"1", Request(3, 3, "later", {}))
    assert one.answer_bytes == 0
    assert GiveUp(one, 2) in server.events
    server.finish(0)  # its answer comes too late
    assert server.sent(b"1") == []


def test_what_is_to_be_sent_wakes_the_server(server: Server) -> None:
    """It waits for messages, and an answer or an item may come between two of them."""
    greet(server)
    server.ask(b"1", Request(1, 0, "later", {}))
    launch(server)
    for come in (server.finish, server.talkers["a"].say):
        woken = server.woken
        come()
        assert server.woken > woken
        assert len(server.sent(b"1")) == 1


def test_a_client_that_takes_no_answers_is_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_PENDING", 10)
    greet(server)
    [one] = server.sessions.all
    for number in range(1, 12):
        server.receive(b"1", Request(number, 0, "now", {}))
    messages = server.sent(b"1")
    assert [type(message) for message in messages] == [Response] * 10 + [Bye]
    assert server.events[-1] == Gone(one)
    assert len(server.sessions) == 0


def test_answers_that_are_not_confirmed_are_bounded_by_their_bytes_and_the_users(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(session, "MAX_ANSWER_BYTES", 1000)
        greet(server)
        server.ask(b"1", Request(1, 0, "now", {"value": "x" * 1000}))
        assert isinstance(server.ask(b"1", Request(2, 0, "now", {}))[-1], Bye)
    monkeypatch.setattr(sessions, "USER_ANSWER_BYTES", 1500)
    large, small = Request(1, 0, "now", {"value": "x" * 900}), Request(1, 0, "now", {"value": "x"})
    for peer, user, request in ((b"1", "m", large), (b"2", "m", large), (b"3", "m", small)):
        greet(server, peer, peer * 16, user)
        server.ask(peer, request, user)
    greet(server, b"4", bytes(16), "victim")
    server.ask(b"4", large, "victim")
    asks = ((b"3", "m", 1), (b"4", "victim", 1), (b"1", "m", 0), (b"2", "m", 1))
    for peer, user, goes_on in asks:
        [answer] = server.ask(peer, Request(2, 0, "now", {}), user)
        assert isinstance(answer, Response if goes_on else Bye), peer


# Streams


def test_a_stream_is_resumed_where_the_client_says(server: Server) -> None:
    launch(server, window=10)
    for _ in range(40):
        server.talkers["a"].say()
    assert read(server, b"1") == [(i, str(i)) for i in range(10)]
    server.receive(b"1", Ack("a", 4))
    assert read(server, b"1") == [(i, str(i)) for i in range(10, 14)]
    server.receive(b"1", Ack("a", 1 << 40))  # what was never sent is not acknowledged
    assert read(server, b"1") == [(i, str(i)) for i in range(14, 24)]
    assert greet(server, b"2")
    assert read(server, b"2") == []  # until the client says what it has
    server.receive(b"2", Resume("a", 17, 15))
    assert read(server, b"2") == [(i, str(i)) for i in range(17, 25)]


def test_a_reader_takes_a_stream_over(server: Server) -> None:
    greet(server, b"1", b"1" * 16)
    launch(server)
    server.talkers["a"].say()
    assert read(server, b"1") == [(0, "0")]
    greet(server, b"2", b"2" * 16)
    server.receive(b"2", Request(1, 1, "attach", {"instance": "a"}))
    [closed] = server.sent(b"1")
    assert closed == Closed("a", "cancelled", "another client reads this instance's messages now")
    assert read(server, b"2") == []  # taken by `sent` above
    assert server.ask(b"1", Resume("a", 0, 0)) == [closed]
    server.talkers["a"].say()
    assert read(server, b"2") == [(1, "1")]


@pytest.mark.parametrize("is_first", [True, False])
def test_an_answer_that_nobody_waits_for_goes_where_late_ones_go(is_first: bool) -> None:
    call, late = Call(1, bytes, None), list[str]()
    steps = [partial(call.settle, "late"), partial(call.give_up, late.append)]
    for step in steps if is_first else reversed(steps):
        step()
    assert late == ["late"]


def test_the_window_counts_bytes_and_not_characters(server: Server) -> None:
    launch(server, window=1000)
    text = "三" * (session.WINDOW_BYTES // 6)  # half a window
    for _ in range(4):
        server.talkers["a"].outbox.put(text)
    assert [number for number, _ in read(server, b"1")] == [0, 1, 2]  # the last may go over it


def test_a_stream_ends_with_its_last_acknowledgement(server: Server) -> None:
    launch(server)
    talker = server.talkers["a"]
    talker.say()
    talker.end()
    read(server, b"1")
    [one] = server.sessions.all
    server.receive(b"1", Ack("a", 1))
    assert "a" in one.streams
    server.receive(b"1", Ack("a", 2))
    assert "a" not in one.streams
    assert not talker.client.attached


# Presence


def test_an_end_that_is_being_written_down_is_waited_for(server: Server) -> None:
    launch(server)
    talker = server.talkers["a"]
    talker.say()
    assert read(server, b"1") == [(0, "0")]
    talker.ended = InstanceEnded(InstanceState.FINISHED, "done")  # and is no item yet
    server.receive(b"1", Ack("a", 1))
    talker.end()
    assert read(server, b"1") == [(1, Ended("finished", "done"))]


def test_a_silent_client_is_gone_and_any_message_brings_it_back(
    server: Server, clock: Clock
) -> None:
    launch(server)
    [one], talker = server.sessions.all, server.talkers["a"]
    for message in (Ping(), Probed(1)):
        passes(server, clock, TIMING.dead + 1)
        presences = [one.presence]
        assert talker.client == ClientPresence(False, clock.now)
        talker.say()
        assert not any(isinstance(m, Items) for m in server.sent(b"1"))
        server.receive(b"1", message)
        assert [*presences, one.presence] == [Presence.SILENT, Presence.PRESENT]
        assert talker.client == ClientPresence(True, None)
        assert any(isinstance(m, Items) for m in server.sent(b"1"))


def test_a_session_is_kept_for_a_while(server: Server, clock: Clock) -> None:
    launch(server)
    server.receive(b"1", Request(2, 0, "later", {}))
    [one], talker = server.sessions.all, server.talkers["a"]
    passes(server, clock, TIMING.dead + 1)
    passes(server, clock, TIMING.resumable - 1)
    assert greet(server, b"2")
    passes(server, clock, TIMING.dead + 1)
    passes(server, clock, TIMING.resumable + 1)
    assert server.events[-1] == Gone(one)
    assert talker.client == ClientPresence(False, clock.now)
    assert not greet(server, b"3")


def test_a_session_with_many_answers_is_kept_for_less_long(server: Server, clock: Clock) -> None:
    for peer, size in ((b"1", 10), (b"2", sessions.LARGE_BYTES)):
        greet(server, peer, peer * 16)
        server.ask(peer, Request(1, 0, "now", {"value": bytes(size)}))
    passes(server, clock, TIMING.dead + 1)
    passes(server, clock, TIMING.resumable_large - 1)
    assert len(server.sessions) == 2
    passes(server, clock, 2)
    assert [one.id for one in server.sessions.all] == [b"1" * 16]


def test_a_connection_that_takes_nothing_is_given_up(server: Server) -> None:
    launch(server)
    server.talkers["a"].say()
    server.sessions.out.gather()
    [delivery] = server.sessions.take_deliveries()
    server.sessions.undelivered(delivery, gone=False)
    assert server.sessions.all[0].presence is Presence.CUT
    assert server.ask(b"1", Ping()) == [Who()]
    assert greet(server, b"1")
    server.receive(b"1", Resume("a", 0, 0))
    assert read(server, b"1") == [(0, "0")]


def test_bye_ends_a_session(server: Server) -> None:
    greet(server)
    server.receive(b"1", Request(1, 0, "later", {}))
    [one] = server.sessions.all
    server.receive(b"1", Bye("done"))
    assert server.events[-1] == Gone(one)
    server.finish()
    assert server.ask(b"1", Ping()) == [Who()]
    assert not greet(server)


def test_who_is_an_admin() -> None:
    for user, admins in (("ann", ("ann",)), ("local", ())):
        Session(bytes(16), user, 0.0).check_admin(admins)
    with pytest.raises(ApiError, match="permission-denied"):
        Session(bytes(16), "ann", 0.0).check_admin(("bob",))


# What was sent and not read


BLOB = bytes(16 << 10)


def flood(server: Server, peers: dict[bytes, str]) -> int:
    """Acknowledges all that comes without reading it, until no more does; bytes that were sent."""
    total = before = 0
    while True:
        for peer, instance in peers.items():
            talker = server.talkers[instance]
            while len(talker.outbox) < 100:
                talker.outbox.put(BLOB)
            for message in server.sent(peer):
                if isinstance(message, Items):
                    total += len(message.items) * len(BLOB)
            server.receive(peer, Ack(instance, 1 << 60))
        if total == before:
            return total
        before = total


@pytest.mark.usefixtures("little")
def test_acknowledging_is_not_reading(server: Server) -> None:
    launch(server, window=1000)
    numbers: list[int] = []
    server.talkers["a"].outbox.put(BLOB)
    total = 0
    for _ in range(3000):
        talker = server.talkers["a"]
        while len(talker.outbox) < 100:
            talker.outbox.put(BLOB)
        messages = server.sent(b"1")
        numbers += [m.number for m in messages if isinstance(m, Probe)]
        total += sum(len(m.items) for m in messages if isinstance(m, Items)) * len(BLOB)
        server.receive(b"1", Ack("a", 1 << 60))
    assert (3 << 20) < total < (7 << 20)
    assert len(numbers) == 1
    # What it guesses shows nothing.
    for number in range(100):
        server.receive(b"1", Probed(number))
    assert flood(server, {b"1": "a"}) == 0
    # It reads, and goes on as others do.
    server.receive(b"1", Probed(numbers[0]))
    assert flood(server, {b"1": "a"}) >= (1 << 20)


@pytest.mark.usefixtures("little")
def test_a_user_s_connections_share_what_they_may_be_behind(server: Server) -> None:
    peers = {b"1": "a", b"2": "b"}
    sent = 0
    for peer, instance in peers.items():
        greet(server, peer, peer * 16)
        launch(server, peer, instance, 1000)
    # One after the other: `sent` shows one connection's part and drops the other's.
    for peer, instance in peers.items():
        sent += flood(server, {peer: instance})
    assert (5 << 20) < sent < (11 << 20)
    for peer in peers:  # they are gone, and nothing is held for them
        server.sessions.out.gather()
        server.sessions.tick()
        for delivery in server.sessions.take_deliveries():
            if delivery.peer == peer:
                server.sessions.undelivered(delivery, gone=True)
    assert server.sessions.backlog.connections() == []
    greet(server, b"3", b"3" * 16)
    launch(server, b"3", "c", 1000)
    assert flood(server, {b"3": "c"}) > (3 << 20)


@pytest.mark.usefixtures("little")
def test_a_client_that_confirms_answers_without_reading_is_cut_off(server: Server) -> None:
    of = os.urandom(16)
    greet(server, b"1", of)
    [one] = server.sessions.all
    number, behind = 0, 0
    while one.peer is not None:
        number += 1
        server.ask(b"1", Request(number, number, "now", {"value": BLOB}))
        behind = max(behind, server.sessions.backlog.behind(b"1"))
    assert (8 << 20) < behind < (10 << 20)
    assert one.presence is Presence.CUT
    assert greet(server, b"2", of)


@pytest.mark.usefixtures("little")
def test_a_user_s_connections_that_read_no_answers_are_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "PROBE_BYTES", 64 << 10)
    peers = [bytes([number]) for number in range(40)]
    for peer in peers:
        greet(server, peer, peer * 16, "m")
    greet(server, b"v", b"v" * 16, "victim")
    for number in range(1, 60):  # of a megabyte each, so that none has too much alone
        for peer in peers:
            server.receive(peer, Request(number, number, "now", {"value": BLOB}), "m")
        server.ask(b"v", Request(number, number, "now", {"value": BLOB}), "victim")
        server.sent(b"v")
    behind = sum(server.sessions.backlog.behind(peer) for peer in peers)
    assert (6 << 20) < behind < (14 << 20)
    left = [one.user for one in server.sessions.all if one.peer is not None]
    assert "victim" in left
    assert len(left) < 40


@pytest.mark.usefixtures("little")
def test_a_probe_that_was_not_answered_is_sent_again(server: Server, clock: Clock) -> None:
    launch(server, window=1000)
    for _ in range(70):
        server.talkers["a"].outbox.put(BLOB)
    numbers = []
    for _ in range(10):
        numbers += [m.number for m in server.sent(b"1") if isinstance(m, Probe)]
    assert len(numbers) == 1
    server.sessions.tick()
    assert server.sent(b"1") == [Probe(numbers[0])]
    probe, welcome = server.ask(b"1", Hello(PROTOCOL, bytes(16), "another of this name"))
    assert probe == Probe(numbers[0])
    assert isinstance(welcome, Welcome)


# The client


def connected(patience: float | None = None) -> World:
    world = World()
    world.client._patience = patience or world.client._patience
    world.connect()
    world.settle()
    return world


def test_a_client_pings_when_it_has_nothing_to_say() -> None:
    world = connected()
    world.tick(1)
    assert world.client.take_outgoing() == []
    world.tick(1)
    world.client_sends()
    assert len(world.up) == 1
    world.settle()
    assert world.client.is_open


def test_a_client_gives_up_when_its_patience_ends() -> None:
    world = connected(patience=5)
    world.request("later")
    world.client_sends()
    world.cut()
    world.tick(4)
    assert world.client.error is None
    world.tick(2)
    assert isinstance(world.client.error, ServerUnreachable)
    assert "has not come back within 5 s" in str(world.client.error)
    assert isinstance(world.calls[0][1].answer, ServerUnreachable)


@pytest.mark.parametrize("durable", [True, False])
def test_who_reads_from_a_durable_instance_waits_for_the_next_server(durable: bool) -> None:
    """The server says goodbye, or is away for longer than others wait."""
    for is_told in (True, False):
        world = connected(patience=5)
        stream = Stream(world.client, "a")
        stream.durable = durable
        world.client.open_stream(stream)
        if is_told:
            world.client.receive(Bye("it stops"))
        world.cut()
        world.tick(6)
        assert (world.client.error is None) == durable


def test_requests_of_a_forgotten_session_fail_though_its_first_welcome_was_lost() -> None:
    world = connected()
    world.request("now")
    world.client_sends()
    world.server_receives()  # it is done, and the answer is lost with the connection
    world.cut()
    for _ in range(3):
        world.tick(70)
    for _ in range(2):
        world.connect()
        world.client_sends()
        world.server_receives()  # hello: a welcome goes out
        if not world.server.sessions.all[0].pending:
            world.cut()
            world.connect()
            world.client_sends()
            world.server_receives()
        world.settle()
    assert isinstance(world.calls[0][1].answer, ConnectionLost)
    assert world.server.done == [0]
