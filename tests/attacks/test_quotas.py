"""What one user may take, and what another one still gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from support.instances import failure, is_ready, take_text
from support.programs_read import create_sampler
from support.rig import PROGRAM, Rig, messaging, runtime
from support.rpc_world import Server as Clients
from support.scheduler_fixtures import Guest, Server

from inferlet import Sampler
from pie_control.api import allocate, session
from pie_control.api.messaging.channel import OWN_BYTES
from pie_control.instances.instance import InstanceState
from pie_control.instances.mailbox import kept_bytes
from pie_control.rpc import sessions
from pie_py.config.keys import LOCAL_USER
from pie_py.config.limits import Quota
from pie_py.config.server import ServerConfig
from pie_py.config.services import DurableConfig
from pie_py.wire.rpc import PROTOCOL, Hello, Refused, Welcome


def test_one_user_leaves_instances_to_others() -> None:
    rig = Rig(ServerConfig(max_instances=10, quota=Quota(), quotas={"rich": Quota(share=0.8)}))
    mine = [rig.launch("mallory") for _ in range(5)]
    with failure("limit-exceeded", "you have 5 instances alive", "one user"):
        rig.launch("mallory")
    rig.launch("victim")
    rig.end(mine[0])
    rig.launch("mallory")
    for _ in range(4):
        rig.launch("rich")
    with failure("limit-exceeded", "10 instances are alive"):
        rig.launch("rich")


def test_one_user_launches_so_many_a_second() -> None:
    rig = Rig(ServerConfig(quota=Quota(launches=5), quotas={"slow": Quota(launches=0.5)}))
    for _ in range(3):
        for _ in range(5):
            rig.end(rig.launch("mallory"))
        with failure("limit-exceeded", "you have launched 5 instances", "may start in 200 ms"):
            rig.launch("mallory")
        rig.launch("victim")
        rig.clock.seconds += 1.0
    rig.launch("slow")
    with failure("limit-exceeded"):
        rig.launch("slow")
    for _ in range(500):
        rig.end(rig.launch(LOCAL_USER))
    rig.clock.seconds -= 1000.0
    rig.launch("slow")


def test_one_user_leaves_memory_for_messages_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_control.wiring.MESSAGE_BYTES", 6600)
    rig = Rig(ServerConfig(quota=Quota()))
    first, second = rig.launch("mallory"), rig.launch("mallory")
    victim = rig.launch("victim")
    heard, not_heard = (messaging.subscribe(one, "t") for one in (second, victim))
    session.send(first, "x" * 400)
    messaging.broadcast(first, "t", "x" * 400)
    session.send_blob(second, b"x" * 400)  # the last one may go beyond the share
    held = OWN_BYTES + 1 + 2 * kept_bytes("x" * 400) + kept_bytes(b"x" * 400)
    assert rig.registry.users.messages("mallory") == held
    with failure("would-block", f"{held} bytes of messages", "one user may have"):
        session.send(first, "y")
    with failure("would-block", "has not read 1 messages"):
        messaging.broadcast(first, "t", "y")
    assert messaging.broadcast(victim, "t", "z" * 400) == 1
    session.send(victim, "z" * 400)
    waits = [session.writable(one) for one in (first, second)]
    waits.append(messaging.broadcast_room(first, "t"))
    writers = (first, second, first)
    assert not any(is_ready(one, wait) for one, wait in zip(writers, waits, strict=True))
    second.outbox.pop()
    assert all(is_ready(one, wait) for one, wait in zip(writers, waits, strict=True))
    session.send(second, "y" * 500)
    wait = session.writable(first)
    assert not is_ready(first, wait)
    assert take_text(second, messaging.next_message(second, heard)) == "x" * 400
    assert is_ready(first, wait)
    rig.end(second)
    assert rig.registry.users.messages("mallory") == kept_bytes("x" * 400)
    rig.end(first)
    assert rig.registry.users.messages("mallory") == 0
    assert take_text(victim, messaging.next_message(victim, not_heard)) == "z" * 400


def test_who_waits_for_two_kinds_of_room_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a topic whose box is read while the user's other messages leave no room."""
    monkeypatch.setattr("pie_control.wiring.MESSAGE_BYTES", 4600)
    rig = Rig(ServerConfig(quota=Quota()))
    sender, reader = rig.launch("mallory"), rig.launch("mallory", mailbox_bytes=400)
    heard = messaging.subscribe(reader, "t")
    messaging.broadcast(sender, "t", "x" * 400)
    room = messaging.broadcast_room(sender, "t")
    session.send(sender, "x" * 1600)
    assert take_text(reader, messaging.next_message(reader, heard)) == "x" * 400
    assert not is_ready(sender, room)
    sender.outbox.pop()
    assert is_ready(sender, room)


def test_one_user_leaves_the_disk_to_others(tmp_path: Path) -> None:
    config = ServerConfig(
        data_folder=tmp_path, durable=DurableConfig(bytes=6000), quota=Quota(share=0.5)
    )
    durable = Rig(config).parts.durable
    head = {"journal": 1, "user": "mallory"}
    entries = [head, ["model", "x" * 3000, ""]]
    size = trio.run(durable.shelf.create, "a", "mallory", entries)
    durable.shelf.open("a", "mallory", size)
    held = durable.shelf.bytes_of("mallory")
    with failure("limit-exceeded", f"your journals have {held} bytes", "one user may have"):
        trio.run(durable._begin, PROGRAM, [], "mallory", [])
    with failure("not-found", "no program"):  # there is room; this server has no programs
        trio.run(durable._begin, PROGRAM, [], "victim", [])
    durable.shelf.end("a", "killed", "")
    with failure("not-found", "no program"):  # what has ended has made room
        trio.run(durable._begin, PROGRAM, [], "mallory", [])
    assert not (tmp_path / "journals" / "a.journal").exists()


def test_one_user_leaves_futures_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_control.wiring.FUTURES", 20)
    rig = Rig(ServerConfig(quota=Quota(), quotas={"rich": Quota(share=0.8)}))
    first, second, victim = rig.launch("mallory"), rig.launch("mallory"), rig.launch("victim")
    taken = [runtime.sleep(first, 1 << 40) for _ in range(6)]
    for _ in range(4):
        runtime.sleep(second, 1 << 40)
    with failure("limit-exceeded", "your instances have 10 futures open", "one user may"):
        runtime.sleep(second, 1)
    runtime.sleep(victim, 1)
    runtime.cancel(first, taken[0])
    runtime.sleep(second, 1 << 40)
    rig.end(first)
    assert rig.registry.users.futures("mallory") == 5
    rig.end(second)
    assert rig.registry.users.futures("mallory") == 0
    rich = rig.launch("rich", futures=12)
    for _ in range(12):
        runtime.sleep(rich, 1)
    with failure("limit-exceeded", "12 futures are open"):
        runtime.sleep(rich, 1)


def test_clients_without_keys_are_one_user_who_has_the_machine() -> None:
    rig = Rig(ServerConfig(max_instances=10, quota=Quota()))
    for _ in range(10):
        rig.launch(LOCAL_USER)


def test_one_user_leaves_sessions_to_others() -> None:
    clients = Clients(lambda: 0.0)
    most = sessions.MAX_SESSIONS // 2

    def hello(number: int, user: str) -> object:
        [answer] = clients.ask(b"1", Hello(PROTOCOL, number.to_bytes(16), "a test"), user)
        return answer

    for number in range(most):
        clients.receive(b"1", Hello(PROTOCOL, number.to_bytes(16), "a test"), "mallory")
    clients.sent(b"1")
    refused = hello(most, "mallory")
    assert isinstance(refused, Refused)
    assert refused.message.startswith(f"you have {most} sessions")
    assert isinstance(hello(most, "victim"), Welcome)


def test_one_user_leaves_embeds_samplers_and_exports_to_others() -> None:
    server = Server(quota=Quota(), embeds=8, samplers=8, kv_pages=40)
    first, second = (Guest(server, server.launch("mallory")) for _ in range(2))
    victim = Guest(server, server.launch("victim"))
    first.embeds(3)
    second.embeds(1)
    with failure("limit-exceeded", "your instances have 4 embeds", "one user may have 4"):
        second.embeds(1)
    victim.embeds(4)
    for _ in range(4):
        create_sampler(first.instance, first.queue, "{}")
    with failure("limit-exceeded", "your instances have 4 samplers"):
        create_sampler(second.instance, second.queue, "{}")
    create_sampler(victim.instance, victim.queue, "{}")
    remembers = Sampler(repetition_penalty=1.1).to_json()
    rows = Server(quota=Quota(), samplers=8, count_rows=4)
    hog, other = (Guest(rows, rows.launch(user)) for user in ("mallory", "victim"))
    for guest in (hog, hog, other, other):
        create_sampler(guest.instance, guest.queue, remembers)
    with failure("limit-exceeded", "2 samplers that remember tokens"):
        create_sampler(hog.instance, hog.queue, remembers)
    host = Server(quota=Quota(), host_pages=4)
    hog, other = (Guest(host, host.launch(user)) for user in ("mallory", "victim"))
    for guest, count in ((hog, 2), (other, 2), (hog, 1)):
        pages, embeds = guest.pages(count), guest.embeds(8)
        for page in range(count):
            guest.embed([1] * 8, 0, embeds)
            guest.forward([], embeds, [pages[0] + page, 1])
        if guest is hog and count == 1:
            with failure("limit-exceeded", "your instances have 2 host pages"):
                guest.swap_out(pages)
        else:
            guest.swap_out(pages)
    for guest in (first, victim):
        allocate.export_kvpage(guest.instance, guest.queue, guest.pages(8), "mine", False)
    with failure("limit-exceeded", "the exports of one user may hold 10 pages"):
        allocate.export_kvpage(first.instance, first.queue, first.pages(3), "more", False)


def test_a_user_who_holds_all_pages_gives_up_what_is_above_his_part() -> None:
    server = Server(quota=Quota(), kv_pages=12)
    hogs = [Guest(server, server.launch("mallory")) for _ in range(3)]
    for hog in hogs:
        hog.pages(4)
    victim = Guest(server, server.launch("victim"))  # the youngest of all
    victim.pages(6)
    assert [hog.instance.state for hog in hogs] == [
        InstanceState.RUNNING,
        InstanceState.KILLED,
        InstanceState.KILLED,
    ]
    with failure("out-of-resources"):
        victim.pages(3)  # beyond his own part, he ends nobody's
    assert hogs[0].instance.state is InstanceState.RUNNING


def test_one_above_his_part_does_not_end_the_younger_ones_of_a_modest_user() -> None:
    server = Server(quota=Quota(), kv_pages=12)
    hog = Guest(server, server.launch("mallory"))
    hog.pages(8)
    victim = Guest(server, server.launch("victim"))
    victim.pages(4)
    with failure("out-of-resources"):
        hog.pages(1)
    assert victim.instance.state is InstanceState.RUNNING


def test_no_user_goes_before_others_by_a_priority_of_his_own() -> None:
    server = Server(quota=Quota(), quotas={"paying": Quota(priority=5)})
    for user, most in (("mallory", 0), ("paying", 5), (LOCAL_USER, 100)):
        guest = Guest(server, server.launch(user))
        for priority in (-100, most):
            runtime.set_queue_priority(guest.instance, guest.queue, priority)
        with failure("invalid-argument", f"not within -100 to {most}"):
            runtime.set_queue_priority(guest.instance, guest.queue, most + 1)
