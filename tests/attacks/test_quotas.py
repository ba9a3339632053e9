"""What one user may take, and what another one still gets."""

from __future__ import annotations

from support.instances import failure
from support.rig import Rig, runtime
from support.rpc_world import Server as Clients
from support.scheduler_fixtures import Guest, Server

from pie_control.api import allocate, sample
from pie_control.instances.instance import State
from pie_control.rpc import sessions
from pie_py.config.keys import LOCAL_USER
from pie_py.config.quotas import Quota
from pie_py.config.server import ServerConfig
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
        sample.create_sampler(first.instance, first.queue, "{}")
    with failure("limit-exceeded", "your instances have 4 samplers"):
        sample.create_sampler(second.instance, second.queue, "{}")
    sample.create_sampler(victim.instance, victim.queue, "{}")
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
    assert [hog.instance.state for hog in hogs] == [State.RUNNING, State.KILLED, State.KILLED]
    with failure("out-of-resources"):
        victim.pages(3)  # beyond his own part, he ends nobody's
    assert hogs[0].instance.state is State.RUNNING


def test_one_above_his_part_does_not_end_the_younger_ones_of_a_modest_user() -> None:
    server = Server(quota=Quota(), kv_pages=12)
    hog = Guest(server, server.launch("mallory"))
    hog.pages(8)
    victim = Guest(server, server.launch("victim"))
    victim.pages(4)
    with failure("out-of-resources"):
        hog.pages(1)
    assert victim.instance.state is State.RUNNING


def test_no_user_goes_before_others_by_a_priority_of_his_own() -> None:
    server = Server(quota=Quota(), quotas={"paying": Quota(priority=5)})
    for user, most in (("mallory", 0), ("paying", 5), (LOCAL_USER, 100)):
        guest = Guest(server, server.launch(user))
        for priority in (-100, most):
            runtime.set_queue_priority(guest.instance, guest.queue, priority)
        with failure("invalid-argument", f"not within -100 to {most}"):
            runtime.set_queue_priority(guest.instance, guest.queue, most + 1)
