"""A forward for which there is no memory is that command's error alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.model_rig import Rig, Step, forward_of, ints, tokens_of

from pie_inference import handlers
from pie_inference.handlers.forward import TOO_LARGE
from pie_py.wire.plan import EmbedText, Forward


class Small:
    """A network that has memory for some inputs only: the device's limit, without the device."""

    def __init__(self, network: Any, most: int) -> None:
        self._network = network
        self._most = most

    def __call__(self, hidden: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if hidden.shape[0] > self._most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        found: torch.Tensor = self._network(hidden, *arguments)
        return found


def batch(lengths: list[int], observed: list[int]) -> tuple[EmbedText, Forward]:
    """Sequences on pages of their own, four each."""
    count, each = sum(lengths), len(lengths)
    slots = [64 * i + k for i, n in enumerate(lengths) for k in range(n)]
    positions = [k for n in lengths for k in range(n)]
    return (
        EmbedText(ints(tokens_of(count)), ints(positions), ints(range(count))),
        forward_of(
            lengths,
            slots,
            [[1000 + i] for i in range(each)],
            observed=observed,
            detail=[2] * each if observed else [],
        ),
    )


@pytest.mark.parametrize("observed", [[], [2, 0, 1, 0, 3]])
def test_others_of_its_batch_are_carried_out(
    folder: Path, observed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    embed, forward = batch([9, 3, 40, 1, 6], observed)
    wanted, found = Rig(folder), Rig(folder)
    with torch.inference_mode():
        handlers.embeds.embed_text(wanted.model, embed)
        seen = handlers.forward.forward(wanted.model, forward)
        handlers.embeds.embed_text(found.model, embed)
        network = found.model.network
        monkeypatch.setattr(network, "forward", Small(network.forward, 15))
        answer = handlers.forward.forward_within_memory(found.model, forward).get()
    assert answer.refused == {2: TOO_LARGE}
    hidden = [rig.model.embeds.hidden[1000:1005] for rig in (wanted, found)]
    others = [0, 1, 3, 4]
    torch.testing.assert_close(hidden[1][others], hidden[0][others], atol=1e-5, rtol=0)
    # Nothing of whoever had the pages and embeds before shows.
    assert not hidden[1][2].any()
    assert not found.model.cache.data[:, 128:168].any()
    assert (seen is None) == (answer.values is None)
    if seen is None or answer.values is None:
        return
    whole, parts = seen.get(), answer.values
    for i in others:
        rows = [a.values[slice(*a.starts[i : i + 2])] for a in (whole, parts)]
        np.testing.assert_allclose(rows[1], rows[0], atol=1e-5)
    assert parts.starts[2] == parts.starts[3]


def test_afterwards_all_is_as_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(folder)
    stream = rig.sequence(40)
    whole = rig.model.network.forward
    with torch.inference_mode(), monkeypatch.context() as patch:
        patch.setattr(rig.model.network, "forward", Small(whole, 4))
        answer = handlers.forward.forward_within_memory(rig.model, batch([9], [])[1]).get()
        assert list(answer.refused or ()) == [0]
    (logits,) = rig.forward(Step(stream, tokens_of(9)))
    assert logits.isfinite().all()
