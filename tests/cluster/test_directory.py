"""The directory's decisions, one by one: joins, reports, leases, drains, placements."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import pytest
from cluster.messages import KEY, join, report

from pie_cluster.directory.directory import (
    START_SECONDS,
    Directory,
    Over,
    PlacementRequest,
)
from pie_cluster.directory.node import Life, State
from pie_cluster.directory.policies import cached
from pie_cluster.wire.messages import (
    NO_WORKER,
    WAITS,
    Fenced,
    JoinAgain,
    Load,
    Renewed,
    Report,
    export_key,
    prefix_key,
    program_key,
)
from pie_control.errors import Refusal
from pie_py.wire.methods import FIRST, MOST_PREFIXES, prefix_hashes

CHAT = PlacementRequest("ann", "chat")


def directory(*nodes: str) -> Directory:
    made = Directory(cached, Random(1), 0.0)
    for node in nodes:
        assert isinstance(made.join(join(node), KEY, 0.0), Renewed)
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
    assert "no node yet" in refused("busy", lambda: directory().place(CHAT, 3.0))


def test_a_node_that_is_lost_is_shown_until_it_is_back_or_has_left() -> None:
    some = directory("n1", "n2", "n3")
    for now in range(1, 12):
        some.due(float(now))
        some.report(report(now), KEY, float(now))
    shown = {one.node: one for one in some.status(11.0)}
    assert {name: one.state for name, one in shown.items()} == {
        "n1": "ready",
        "n2": "lost",
        "n3": "lost",
    }
    assert (shown["n2"].silent_seconds, shown["n2"].serves) == (11.0, False)
    assert shown["n2"].reason == "it has said nothing for 10 s"
    some.begin(Life("n2", 2), "its machine was lost", 11.0)
    some.forget("n3")
    assert states(some, 11.0) == {"n1.1": "ready", "n2.2": "starting"}


def test_a_node_that_began_and_never_joined_is_lost() -> None:
    """With its machine. One that waits for machines is shown for as long as it does."""
    some = directory("n1")
    some.begin(Life("n2", 1), "its control process was killed by SIGKILL", 0.0)
    some.begin(Life("n3", 1), f"{WAITS}2 machines", 0.0)
    assert set(states(some, 600.0)) == {"n1.1", "n2.1", "n3.1"}
    assert states(some, START_SECONDS + 1)["n2.1"] == "lost"
    assert states(some, START_SECONDS + 1)["n3.1"] == "starting"
    assert isinstance(some.join(join("n2"), KEY, START_SECONDS + 2), Renewed)  # it was slow


def test_what_is_full_takes_no_launches() -> None:
    some = directory("n1", "n2")
    lives = [some.place(PlacementRequest(f"user {i}", "chat"), 0.0).life.node for i in range(20)]
    assert lives.count("n1") == lives.count("n2") == 10
    refused("starting", lambda: some.place(CHAT, 0.0))  # others may not have been heard of yet
    for now in (1.0, 2.0):
        assert isinstance(some.report(report(int(now), instances=10), KEY, now), Renewed)
        some.report(report(int(now), "n2", instances=10), KEY, now)
    assert "no room" in refused("busy", lambda: some.place(CHAT, 3.0))
    some.report(report(3, "n2", instances=9), KEY, 3.1)
    assert some.place(CHAT, 3.1).life.node == "n2"


def test_a_node_without_worker_takes_no_launches() -> None:
    some = directory("n1", "n2")
    some.report(
        Report("n1", 1, 1, Load(3, 0, NO_WORKER), [(program_key("ann", "chat"), 8)]), KEY, 1
    )
    assert states(some, 1.0) == {"n1.1": "no-worker", "n2.1": "ready"}
    assert [one.pool for one in some.status(1.0)] == [1.0, 0.0]
    assert {some.place(CHAT, 1.0).life.node for _ in range(5)} == {"n2"}
    refused("invalid", lambda: some.drain("n2", 1.0, 1.0))
    some.report(report(2), KEY, 2.0)
    assert states(some, 2.0) == {"n1.1": "ready", "n2.1": "ready"}
    some.report(Report("n1", 1, 3, Load(0, 0, NO_WORKER)), KEY, 2.5)
    some.report(Report("n2", 1, 1, Load(0, 0, NO_WORKER)), KEY, 2.5)
    assert "no worker" in refused("busy", lambda: some.place(CHAT, 3.0))


def test_launches_of_a_program_stay_together_until_waiting_takes_longer() -> None:
    some = directory(*(f"n{i}" for i in range(20)))
    key = program_key("ann", "chat")
    some.report(report(1, "n7", cached=[(key, 8000)]), KEY, 0.1)
    assert {some.place(CHAT, 0.1).life.node for _ in range(5)} == {"n7"}
    busy = Load(5, 50_000)  # five seconds; the cache saves 0.8
    some.report(Report("n7", 1, 2, busy), KEY, 0.2)
    assert some.place(CHAT, 0.2).life.node != "n7"


def test_programs_that_say_nothing_spread_and_those_that_nodes_tell_of_stay() -> None:
    """What a launch may find is learned from reports, not assumed."""
    nodes = [f"n{i}" for i in range(20)]
    some = directory(*nodes)
    first = [some.place(CHAT, 0.0).life.node for _ in range(len(nodes))]
    assert max(first.count(node) for node in nodes) <= 3
    key = program_key("ann", "chat")
    some.report(report(1, "n7", cached=[(key, 8000)]), KEY, 0.1)
    for node in nodes:
        some.report(report(2 if node == "n7" else 1, node), KEY, 0.2)
    assert {some.place(CHAT, 0.2).life.node for _ in range(3)} == {"n7"}


def test_chats_of_one_program_go_where_prompts_went_that_began_alike() -> None:
    nodes = [f"n{i}" for i in range(20)]
    some = directory(*nodes)

    def chat(prompt: str) -> str:
        request = PlacementRequest("ann", "http", prefixes=prefix_hashes(prompt))
        return some.place(request, 0.0).life.node

    documents = [f"Summarize: {i}. " + f"line {i} " * 1000 for i in range(5)]
    first = [chat(document) for document in documents]
    assert len(set(first)) == 5  # nothing is shared, so they go where nothing waits
    for node in nodes:
        some.report(report(1, node), KEY, 0.0)
    assert [chat(f"{document} In French?") for document in documents] == first
    busy = Load(1, 3000)  # 0.3 s of waiting; what is cached saves 0.1
    some.report(Report(first[0], 1, 2, busy), KEY, 0.0)
    assert chat(documents[0]) != first[0]
    some.report(Report(first[1], 1, 2, Load(0, 0, NO_WORKER)), KEY, 0.0)  # its caches are gone
    some.report(report(3, first[1]), KEY, 0.0)
    assert prefix_key("ann", "0") != prefix_key("bob", "0") != program_key("bob", "0")
    assert not some._table.find(first[1]).cached  # type: ignore[union-attr]


def test_hashes_of_prompts_are_alike_as_far_as_the_prompts_are() -> None:
    assert prefix_hashes("x" * (FIRST - 1)) == []
    one = prefix_hashes("é" * FIRST * 3 + "a" * FIRST)
    other = prefix_hashes("é" * FIRST * 3 + "b" * FIRST * 200)
    assert (len(one), len(other)) == (3, MOST_PREFIXES)
    assert one[:2] == other[:2]
    assert len({*one, *other}) == 1 + MOST_PREFIXES


def test_near_an_instance_or_an_export() -> None:
    some = directory(*(f"n{i}" for i in range(20)))
    assert (
        some.place(PlacementRequest("ann", "x", near="chat-1a2b3c4d@n5.1"), 0.0).life.node == "n5"
    )
    some.report(report(1, "n6", exported=[export_key("ann", "notes")]), KEY, 0.0)
    assert some.place(PlacementRequest("ann", "x", near="notes"), 0.0).life.node == "n6"
    gone = refused("near-gone", lambda: some.place(PlacementRequest("bob", "x", near="notes"), 3.0))
    assert "near='notes'" in gone
    some.report(report(2, "n6", released=[export_key("ann", "notes")]), KEY, 0.0)
    refused("near-gone", lambda: some.place(PlacementRequest("ann", "x", near="notes"), 3.0))
    refused(
        "near-gone",
        lambda: some.place(PlacementRequest("ann", "x", near="chat-1a2b3c4d@n99.1"), 5.0),
    )
    refused("not-found", lambda: some.place(PlacementRequest("ann", "x", near="chat@n5.1"), 5.0))


def test_a_node_with_room_is_found_beside_full_ones_and_one_to_avoid() -> None:
    some = directory(*(f"n{i}" for i in range(40)))
    for i in range(2, 40):
        some.report(report(1, f"n{i}", instances=10), KEY, 0.0)
    launch = PlacementRequest("ann", "x", avoid=["n0.1"])
    assert [some.place(launch, 3.0).life.node for _ in range(10)] == ["n1"] * 10
    assert "beside n0.1 have no room" in refused("busy", lambda: some.place(launch, 3.0))


def test_a_directory_that_stood_still_does_not_blame_the_nodes() -> None:
    some = directory("n1", "n2")
    some.due(1.0)
    assert some.due(60.0) == []  # it was stopped; the reports are waiting in its socket
    assert states(some, 60.0) == {"n1.1": "ready", "n2.1": "ready"}
    some.report(report(1, "n2"), KEY, 60.1)
    orders = [order for now in range(61, 71) for order in some.due(float(now))]
    assert orders == [Over(Life("n1", 1), is_drained=False)]


@pytest.mark.parametrize(
    ("message", "sender", "told"),
    [
        (join("n1", 1), b"another", "with another key"),
        (join("n1", 2, protocol=99), KEY, "install the same version"),
        (join("n2", 3), KEY, "n2.3 is over"),
    ],
)
def test_joins_that_are_refused(message: object, sender: bytes, told: str) -> None:
    some = directory("n1")
    some.join(join("n2", 4), KEY, 0.0)
    answer = some.join(message, sender, 0.0)  # type: ignore[arg-type]
    assert isinstance(answer, Fenced)
    assert told in answer.reason
    assert states(some, 0.0) == {"n1.1": "ready", "n2.4": "ready"}


def test_reports_of_other_lives_and_strangers_change_nothing() -> None:
    some = directory()
    some.join(join("n1", 2), KEY, 0.0)
    full = {"instances": 10}
    assert isinstance(some.report(report(1, "n1", 1, **full), KEY, 0.0), Fenced)
    assert isinstance(some.report(report(1, "n1", 2, **full), b"stranger", 0.0), Fenced)
    assert isinstance(some.report(report(1, "n1", 3, **full), KEY, 0.0), JoinAgain)
    assert isinstance(some.report(report(2, "n1", 2, **full), KEY, 0.0), JoinAgain)
    assert isinstance(some.report(report(1, "n9", 1, **full), KEY, 0.0), JoinAgain)
    assert some.place(CHAT, 0.0).life == Life("n1", 2)


def test_a_drain_ends_when_the_node_says_that_it_is_empty() -> None:
    some = directory("n1", "n2")
    some.drain("n1", 60, 0.0)
    assert {some.place(PlacementRequest(f"u{i}", "p"), 0.1).life.node for i in range(10)} == {"n2"}
    told = some.report(report(1), KEY, 0.5)  # empty, but it may have been asked by a client since
    assert told == Renewed(1, 59_500)
    assert some.due(0.5) == []
    some.report(report(2, instances=1, drain_ms=59_000), KEY, 1.0)
    assert some.due(1.0) == []
    some.report(report(3, drain_ms=58_500), KEY, 1.5)
    assert some.due(1.5) == [Over(Life("n1", 1), is_drained=True)]
    assert isinstance(some.report(report(4, drain_ms=58_000), KEY, 2.0), Fenced)


def test_what_is_due_is_found_without_a_look_at_all_nodes() -> None:
    """It is asked after each message."""

    def lines(nodes: int) -> int:
        some = directory(*(f"n{i}" for i in range(nodes)))
        some.drain("n1", 60, 0.0)
        count = 0

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        sys.settrace(trace)
        try:
            assert some.due(0.5) == []
        finally:
            sys.settrace(None)
        return count

    assert lines(1000) == lines(10)


def test_a_drained_node_has_no_other_life() -> None:
    some = directory("n1", "n2")
    some.drain("n1", 0, 0.0)
    assert some.due(0.0) == [
        Over(Life("n1", 1), is_drained=True)
    ]  # before the node has heard of it
    assert isinstance(some.report(report(1), KEY, 0.5), Fenced)
    refused("drained", lambda: some.check_wanted("n1"))
    some.check_wanted("n2")


def test_a_draining_node_that_ends_before_it_is_empty_has_no_other_life() -> None:
    some = directory("n1", "n2")
    some.drain("n1", 60, 0.0)
    refused("drained", lambda: some.check_wanted("n1"))
    assert some.due(0.0) == [Over(Life("n1", 1), is_drained=True)]


def test_a_node_that_is_to_serve_again_has_another_life() -> None:
    some, restarted = directory("n1", "n2"), directory("n2")
    some.drain("n1", 5, 0.0, again=True)
    told = some.report(report(1, instances=1), KEY, 0.5)
    assert told == Renewed(1, 4500, again=True)
    assert some.due(5.0) == [Over(Life("n1", 1), is_drained=False)]
    some.check_wanted("n1")
    knows = restarted.join(join("n1", drain_ms=4500, again=True), KEY, 0.5)
    assert knows == Renewed(0, 4500, again=True)


def test_a_directory_that_begins_again_learns_of_drains() -> None:
    some = directory("n2")
    assert some.join(join("n1", 1, drain_ms=5000), KEY, 0.0) == Renewed(0, 5000)
    assert states(some, 0.0)["n1.1"] == State.DRAINING.value
    some.drain("n1", 50, 0.0)
    some.join(join("n1", 1), KEY, 0.5)  # it has not heard of the longer one
    assert states(some, 0.5)["n1.1"] == State.DRAINING.value


def test_a_policy_that_names_a_full_or_silent_node_is_not_followed() -> None:
    some = Directory(lambda launch, table, random: table.find("n1"), Random(1), 0.0)
    some.join(join("n1", most_instances=1), KEY, 0.0)
    some.join(join("n2"), KEY, 0.0)
    assert [some.place(CHAT, 0.0).life.node for _ in range(3)] == ["n1", "n2", "n2"]
    some.report(report(1, "n1"), KEY, 0.0)
    some.drain("n1", 60, 0.0)
    assert some.place(CHAT, 0.0).life.node == "n2"
