"""The directory's decisions, one by one: joins, reports, leases, drains, placements."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from cluster.messages import join, report

from pie_cluster.directory.directory import START_SECONDS, Directory, PlacementRequest
from pie_cluster.directory.node import Life, State
from pie_cluster.wire.messages import NO_WORKER, Fenced, Load, Renewed, Report, program_key
from pie_control.errors import Refusal
from pie_py.wire.methods import FIRST, MOST_PREFIXES, prefix_hashes

CHAT = PlacementRequest("ann", "chat")


def directory(*nodes: str) -> Directory:
    made = Directory(Random(1), 0.0)
    for node in nodes:
        assert isinstance(made.report(join(node), 0.0), Renewed)
    return made


def refused(code: str, act: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as found:
        act()
    assert found.value.code == code
    assert "\n" not in str(found.value)
    return str(found.value)


def states(of: Directory, now: float) -> dict[str, str]:
    return {f"{one.node}.{one.incarnation}": one.state for one in of.status(now)}


def test_refusals_say_what_is_wrong() -> None:
    some = directory("n1")
    assert "'n7'" in refused("not-found", lambda: some.drain("n7", 1, 0.0))
    assert "last node" in refused("invalid", lambda: some.drain("n1", 1, 0.0))
    assert "n1.2" in refused("node-lost", lambda: some.where("chat-1a2b3c4d@n1.2", 3.0))
    assert "has no node" in refused("busy", lambda: directory().place(CHAT, 3.0))


def test_a_node_that_is_lost_is_shown_until_it_is_back_or_has_left() -> None:
    some = directory("n1", "n2", "n3")
    for now in range(1, 12):
        some.due(float(now))
        some.report(report(), float(now))
    assert states(some, 11.0) == {"n1.1": "ready", "n2.1": "lost", "n3.1": "lost"}
    shown = some.status(11.0)[1]
    assert (shown.silent_seconds, shown.serves) == (11.0, False)
    assert shown.reason == "it has said nothing for 10 s"
    some.begin(Life("n2", 2), "its machine was lost", 11.0)
    some.forget("n3")
    assert states(some, 11.0) == {"n1.1": "ready", "n2.2": "starting"}


def test_a_node_that_began_and_never_joined_is_lost() -> None:
    """With its machine."""
    some = directory("n1")
    some.begin(Life("n2", 1), "its control process was killed by SIGKILL", 0.0)
    assert set(states(some, 600.0)) == {"n1.1", "n2.1"}
    assert states(some, START_SECONDS + 1)["n2.1"] == "lost"
    assert isinstance(some.report(join("n2"), START_SECONDS + 2), Renewed)  # it was slow


def test_a_node_without_worker_takes_no_launches() -> None:
    some = directory("n1", "n2")
    some.report(Report("n1", 1, Load(3, 0, NO_WORKER), [(program_key("ann", "chat"), 8)]), 1)
    assert states(some, 1.0) == {"n1.1": "no-worker", "n2.1": "ready"}
    assert [one.pool for one in some.status(1.0)] == [1.0, 0.0]
    assert {some.place(CHAT, 1.0).life.node for _ in range(5)} == {"n2"}
    refused("invalid", lambda: some.drain("n2", 1.0, 1.0))
    some.report(report(), 2.0)
    assert states(some, 2.0) == {"n1.1": "ready", "n2.1": "ready"}
    some.report(Report("n1", 1, Load(0, 0, NO_WORKER)), 2.5)
    some.report(Report("n2", 1, Load(0, 0, NO_WORKER)), 2.5)
    assert "has no node that takes" in refused("busy", lambda: some.place(CHAT, 3.0))


def test_programs_that_say_nothing_spread_and_those_that_nodes_tell_of_stay() -> None:
    """What a launch may find is learned from reports, not assumed; they stay until waiting takes
    longer.
    """
    nodes = [f"n{i}" for i in range(20)]
    some = directory(*nodes)
    first = [some.place(CHAT, 0.0).life.node for _ in range(len(nodes))]
    assert max(first.count(node) for node in nodes) <= 3
    key = program_key("ann", "chat")
    some.report(report("n7", cached=[(key, 8000)]), 0.1)
    for node in nodes:
        some.report(report(node), 0.2)
    assert {some.place(CHAT, 0.2).life.node for _ in range(5)} == {"n7"}
    some.report(Report("n7", 1, Load(5, 50_000)), 0.3)  # five seconds; the cache saves 0.8
    assert some.place(CHAT, 0.3).life.node != "n7"


def test_chats_of_one_program_go_where_prompts_went_that_began_alike() -> None:
    nodes = [f"n{i}" for i in range(20)]
    some = directory(*nodes)

    def chat(prompt: str, user: str = "ann") -> str:
        request = PlacementRequest(user, "http", prefixes=prefix_hashes(prompt))
        return some.place(request, 0.0).life.node

    documents = [f"Summarize: {i}. " + f"line {i} " * 1000 for i in range(5)]
    first = [chat(document) for document in documents]
    assert len(set(first)) == 5  # nothing is shared, so they go where nothing waits
    for node in nodes:
        some.report(report(node), 0.0)
    assert [chat(f"{document} In French?") for document in documents] == first
    assert [chat(document, "bob") for document in documents] != first
    busy = Load(1, 5000)  # 0.5 s of waiting; what is cached saves 0.1
    some.report(Report(first[0], 1, busy), 0.0)
    assert chat(documents[0]) != first[0]
    some.report(Report(first[1], 1, Load(0, 0, NO_WORKER)), 0.0)  # its caches are gone
    some.report(report(first[1]), 0.0)
    assert not some._table.find(first[1]).cached  # type: ignore[union-attr]


def test_hashes_of_prompts_are_alike_as_far_as_the_prompts_are() -> None:
    assert prefix_hashes("x" * (FIRST - 1)) == []
    one = prefix_hashes("é" * FIRST * 3 + "a" * FIRST)
    other = prefix_hashes("é" * FIRST * 3 + "b" * FIRST * 600)
    assert (len(one), len(other)) == (3, MOST_PREFIXES)
    assert one[:2] == other[:2]
    assert len({*one, *other}) == 1 + MOST_PREFIXES


def test_a_node_with_room_is_found_beside_full_ones_and_one_to_avoid() -> None:
    some = directory(*(f"n{i}" for i in range(40)))
    for i in range(2, 40):
        some.report(report(f"n{i}", instances=10), 0.0)
    launch = PlacementRequest("ann", "x", avoid=["n0.1"])
    assert [some.place(launch, 3.0).life.node for _ in range(10)] == ["n1"] * 10
    assert "beside n0.1 have no room" in refused("busy", lambda: some.place(launch, 3.0))


def test_a_directory_that_stood_still_does_not_blame_the_nodes() -> None:
    some = directory("n1", "n2")
    some.due(1.0)
    assert some.due(60.0) == []  # it was stopped; the reports are waiting in its socket
    assert states(some, 60.0) == {"n1.1": "ready", "n2.1": "ready"}
    some.report(report("n2"), 60.1)
    orders = [order for now in range(61, 71) for order in some.due(float(now))]
    assert orders == [Life("n1", 1)]


def test_a_node_of_another_version_is_refused() -> None:
    some = directory("n1")
    answer = some.report(join("n1", 2, version="0.0"), 0.0)
    assert isinstance(answer, Fenced)
    assert "install the same version" in answer.reason
    assert states(some, 0.0) == {"n1.1": "ready"}


def test_a_directory_that_begins_again_learns_of_drains() -> None:
    some = directory("n2")
    told = some.report(join("n1", 1, drain_ms=5000, again=True), 0.0)
    assert told == Renewed(5000, again=True)
    assert states(some, 0.0)["n1.1"] == State.DRAINING.value
    some.drain("n1", 50, 0.0)
    some.report(join("n1", 1), 0.5)  # it has not heard of the longer one
    assert states(some, 0.5)["n1.1"] == State.DRAINING.value
