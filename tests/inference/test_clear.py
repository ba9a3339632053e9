"""What failed batches were to write is cleared, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import make_llama
from support.model_rig import Rig, Step, assert_close, expected_logits, forward_of, ints

from pie_inference import handlers
from pie_inference.errors import BadBatch
from pie_inference.serving import engine
from pie_py.wire.plan import (
    Batch,
    Clear,
    CopyEmbed,
    CopyKv,
    EmbedSampled,
    EmbedText,
    Forward,
    SwapIn,
    SwapOut,
)

TOKENS = [int(t) for t in np.random.default_rng(3).integers(4, 300, 40)]
NONE = ints([])


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    folder = make_llama(tmp_path_factory.getbasetemp() / "clear-llama")
    return Rig(folder, page_size=8, pages=6, host_pages=4)


def fill(rig: Rig) -> None:
    """Something everywhere."""
    model = rig.model
    with torch.inference_mode():
        for tensor in (model.cache.data, model.embeds.hidden, model.host._parts[0]):
            tensor.fill_(7)
        model.cache.masked[:] = True


def forward() -> Forward:
    # There is no such adapter, so it fails.
    return forward_of([3], [9, -1, 10], [[5]], adapters=[3])


@pytest.mark.parametrize(
    ("batch", "slots", "embeds", "hosts"),
    [
        (forward(), [9, 10], [5], []),
        (EmbedText(ints([-1]), ints([0]), ints([4])), [], [4], []),
        (EmbedSampled(ints([99999]), ints([0]), ints([6])), [], [6], []),
        (CopyEmbed(ints([9999]), ints([0]), ints([2])), [], [2], []),
        (CopyEmbed(ints([0]), ints([9999]), ints([3])), [], [3], []),
        (CopyKv(ints([9999]), ints([3])), [3], [], []),
        (SwapOut(ints([99]), ints([2])), [], [], [2]),
        (SwapIn(ints([99]), ints([1])), list(range(8, 16)), [], []),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_failed_batch(
    rig: Rig, batch: Batch, slots: list[int], embeds: list[int], hosts: list[int]
) -> None:
    fill(rig)
    model = rig.model
    with torch.inference_mode():
        assert engine._start(model, batch).get().error is not None
    for tensor, axis, cleared in (
        (model.cache.data, 1, slots),
        (model.embeds.hidden, 0, embeds),
        (model.host._parts[0], 0, hosts),
    ):
        zero = (tensor.movedim(axis, 0).flatten(1) == 0).all(1)
        assert zero.nonzero().flatten().tolist() == cleared
    assert np.flatnonzero(~model.cache.masked).tolist() == slots


def test_what_does_not_exist_is_not_cleared(rig: Rig) -> None:
    bad = CopyKv(ints([0]), ints([10**6]))
    with torch.inference_mode():
        assert engine._start(rig.model, bad).get().error is not None
        with pytest.raises(BadBatch):
            handlers.pages.clear(rig.model, Clear(NONE, ints([10**6]), NONE))


def test_copies_that_decoding_keeps_are_cleared_too(rig: Rig) -> None:
    folder = Path(rig.model.description.folder)
    streams = [rig.sequence(16), rig.sequence(16)]
    rig.forward(*(Step(stream, TOKENS[:7]) for stream in streams))
    rig.forward(*(Step(stream, TOKENS[7:8]) for stream in streams))
    with torch.inference_mode():
        handlers.pages.clear(rig.model, Clear(ints(streams[0].slots(0, 8)), NONE, NONE))
    found = rig.forward(*(Step(stream, TOKENS[8:9]) for stream in streams))
    assert_close(found[1], expected_logits(folder, TOKENS[:9])[-1:])
    assert (found[0] - found[1]).abs().max() > 0.01
