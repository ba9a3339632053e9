"""Bounds on what a program or a client passes, so that nobody holds the others up."""

from __future__ import annotations

from collections import Counter

import pytest
from support.instances import Instances, failure
from support.rig import runtime

from pie_control.api import session
from pie_control.instances.ended import record_bytes
from pie_control.instances.instance import ARGUMENT_OVERHEAD
from pie_control.instances.launcher import check_arguments
from pie_control.rpc.session import ItemStream, Session
from pie_control.tasks import take_off
from pie_control.wasm import SUSPENDED
from pie_py.wire.rpc import MAX_ARGUMENT_BYTES


def test_a_wait_names_at_most_as_many_futures_as_may_be_open() -> None:
    one = Instances().launch(futures=3)
    handles = [session.receive(one) for _ in range(3)]
    with failure("limit-exceeded", "a wait for 4 futures; 3 at most"):
        runtime.wait(one, [*handles, handles[0]])
    assert one.turn.awaited is None
    assert runtime.wait(one, handles) is SUSPENDED
    assert one.turn.awaited == handles


@pytest.mark.parametrize("text", ["", "x" * 100])
def test_arguments_count_besides_their_text(text: str) -> None:
    most = MAX_ARGUMENT_BYTES // (len(text) + ARGUMENT_OVERHEAD)
    check_arguments([text] * most)
    with failure("limit-exceeded", "the arguments have more than"):
        check_arguments([text] * (most + 1))


def test_records_count_empty_arguments() -> None:
    one = Instances().launch()
    one.args = [""] * 1000
    assert record_bytes(one) >= 1000 * ARGUMENT_OVERHEAD


@pytest.mark.parametrize("child", [False, True])
async def test_a_child_lives_on_when_its_reader_leaves(child: bool) -> None:
    instances = Instances()
    one = instances.launch()
    if child:
        one.parent = instances.launch()

    reader = Session(bytes(16), "ann", 0.0, None)
    stream = ItemStream(one, lambda stream: None)
    stream.attach(reader, 1)
    stream.detach(0.0)
    assert (one.client.left_at is None) == child
    assert not one.client.attached


def test_a_counter_forgets_what_is_gone() -> None:
    counts = Counter(ann=3, bob=1)
    take_off(counts, "ann")
    assert counts["ann"] == 2
    take_off(counts, "ann", 2)
    assert list(counts) == ["bob"]
