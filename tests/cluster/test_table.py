"""What placements draw from: complete, bounded, and looked at a few members at a time."""

from __future__ import annotations

from collections import Counter
from random import Random

import hypothesis.strategies as st
import msgspec
import pytest
from cluster.messages import about, join
from hypothesis import given

from pie_cluster.directory.directory import Directory, PlacementRequest
from pie_cluster.directory.node import Life, Node
from pie_cluster.directory.table import MOST_HOLDERS, Room, Table, cached
from pie_cluster.wire.messages import MOST_HINTS, Load, Report
from pie_control.errors import ApiError
from pie_control.rpc.params import read


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12))))
def test_room_is_a_set_with_the_numbers_of_its_members(changes: list[tuple[int, int]]) -> None:
    """Of as many instances as there are: a node may have ten."""
    ours, model = Room(), set[Node]()
    nodes = [Node(Life(f"n{i}", 1), about(f"n{i}"), Load(), 0.0) for i in range(9)]
    for number, instances in changes:
        node = nodes[number]
        node.take(Load(instances, 500 * instances, 7000 * instances), 0.0)
        ours.put(node)
        (model.add if node.has_room else model.discard)(node)
        assert {*ours.members} == {*ours.places} == model
        assert len(ours) == len(model)
        for each, place in ours.places.items():
            assert ours.members[place] is each
            assert ours.seconds(place, 0.0, 1.0) == 2 * each.pool + each.free_at
    random = Random(0)
    assert not model or {ours.draw(random) for _ in range(200)} == {*range(len(model))}


def one_node() -> tuple[Table, Node]:
    table, node = Table(), Node(Life("n1", 1), about("n1"), Load(), 0.0)
    table.add(node)
    return table, node


def holder(table: Table, key: int, seed: int = 0) -> Node | None:
    """A node that a key leads to."""
    return next(iter(table.holders(key, Random(seed))), None)


def test_hints_are_bounded_and_the_oldest_give_way() -> None:
    table, node = one_node()
    table.hint(node, [(key, 512) for key in range(MOST_HINTS + 1)], 0.0)
    assert len(node.cached) == MOST_HINTS
    assert holder(table, 0) is None
    assert holder(table, 1) is node
    table.hint(node, [(1, 0)], 0.0)
    assert holder(table, 1) is None
    table.remove(node)
    assert holder(table, 2) is None
    assert not len(table.room)


def test_what_a_node_had_to_give_up_leads_nowhere() -> None:
    table, node = one_node()
    table.hint(node, [(1, 512)], 0.0)
    table.hint(node, [(2, 512)], 20.0)
    table.take(node, Load(), 40.0)
    assert list(node.cached) == [1, 2]
    table.take(node, Load(rested_ms=25_000), 40.0)
    assert list(node.cached) == [2]
    assert holder(table, 1) is None


def test_a_decision_looks_at_a_few_nodes_and_a_key_leads_to_a_bounded_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, random = Table(), Random(0)
    for i in range(1000):
        node = Node(Life(f"n{i}", 1), about(f"n{i}"), Load(), 0.0)
        table.add(node)
        table.hint(node, [(7, 512)], 0.0)
    held = {holder(table, 7, seed) for seed in range(1000)}
    assert len(held) == MOST_HOLDERS
    looks, seconds = Counter[int](), table.room.seconds
    monkeypatch.setattr(table.room, "seconds", lambda *of: looks.update(of[:1]) or seconds(*of))
    assert cached([(7, 512)], 0.0, table, random) is not None
    assert 0 < len(looks) <= 4


def test_two_gateways_with_one_table_and_one_seed_agree_and_heed_the_load() -> None:
    def placed() -> list[int]:
        directory = Directory(Random(5), 0.0)
        for i in range(50):
            directory.report(join(f"n{i}", load=Load(0, i * 10_000)), 0.0)
        lives = [directory.place(PlacementRequest(f"u{i % 9}", "p"), 0.0).life for i in range(99)]
        return [int(life.node[1:]) for life in lives]

    assert placed() == placed()
    assert sum(placed()) < 99 * 20  # by chance it were 24.5 times


@pytest.mark.parametrize(
    "wrong",
    [
        {"node": "n1@n2"},
        {"node": "n1\n"},
        {"incarnation": 0},
        {"about": about("n1", prefill_rate=0)},
        {"about": about("n1", pool_tokens=-1)},
        {"about": about("n1", endpoint="x" * 300)},
        {"load": Load(-1)},
        {"load": Load(1 << 60)},
        {"cached": [(1, 1)] * (MOST_HINTS + 1)},
        {"drain_ms": float("nan")},
    ],
)
def test_joins_with_wrong_fields_are_refused(wrong: dict[str, object]) -> None:
    fields = {**msgspec.structs.asdict(join()), **wrong}
    with pytest.raises(ApiError, match="the request cannot be read: report"):
        read("report", msgspec.Raw(msgspec.msgpack.encode(fields)), Report)
