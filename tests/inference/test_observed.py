"""What inputs attended to, held to the attentions that transformers tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.model_rig import Checkpoints, Rig, Step, _additive, assert_close, expected_logits
from transformers import AutoModelForCausalLM

from pie_inference.attention import observed
from pie_inference.errors import BadBatch
from pie_py.wire.plan import Attention

TOTAL, LAYERS, HEADS = range(3)
TOKENS = [int(t) for t in np.random.default_rng(8).integers(4, 300, 60)]
FAMILIES = ["llama", "mistral", "qwen3", "gemma2", "gemma3", "qwen3-moe", "gptoss"]


@torch.inference_mode()
def attentions(folder: Path, tokens: list[int], visible: np.ndarray | None = None) -> torch.Tensor:
    """Probabilities `[layers, heads, tokens, tokens]` by transformers, without its kernels."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    mask = {} if visible is None else {"attention_mask": _additive(visible)}
    out = model(torch.tensor([tokens]), output_attentions=True, **mask)
    return torch.cat(out.attentions)


def of(attention: Attention | None, sequence: int, rows: int) -> torch.Tensor:
    """Notes of a sequence, `[rows, columns]`."""
    assert attention is not None
    part = attention.values[slice(*attention.starts[sequence : sequence + 2].tolist())]
    return torch.from_numpy(part.copy()).view(rows, -1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_attentions_of_transformers(checkpoint: Checkpoints, family: str) -> None:
    folder = checkpoint(family)
    rig = Rig(folder)
    wanted = attentions(folder, TOKENS[:50])
    layers, heads = wanted.shape[:2]
    quiet, text = rig.sequence(40), rig.sequence(60)
    rig.forward(Step(quiet, TOKENS[:7]), Step(text, TOKENS[:23]))
    logits = rig.forward(
        Step(quiet, TOKENS[7:9]), Step(text, TOKENS[23:49], observed=5, detail=HEADS, outputs=3)
    )
    found = of(rig.attention, 1, layers * heads)
    assert_close(found, wanted[:, :, 44:49, :49].sum(2).flatten(0, 1))
    assert rig.attention is not None
    assert rig.attention.starts.tolist() == [0, 0, layers * heads * 49]
    assert_close(logits[1], expected_logits(folder, TOKENS[:49])[46:49])  # nothing else changes
    rig.forward(
        Step(text, TOKENS[49:50], observed=1, detail=LAYERS, keep=False),
        Step(quiet, TOKENS[9:10], keep=False),
        Step(text, TOKENS[49:50], observed=1, detail=TOTAL, outputs=0, keep=False),
    )
    by_layer = wanted[:, :, 49, :50].mean(1)
    assert_close(of(rig.attention, 0, layers), by_layer)
    assert_close(of(rig.attention, 2, 1)[0], by_layer.mean(0))
    whole = by_layer.mean(0).sum().item()  # less than 1 beside sinks
    assert of(rig.attention, 2, 1).sum().item() == pytest.approx(whole, abs=1e-5)


def test_masked_slots_have_none_and_columns_stay(checkpoint: Checkpoints) -> None:
    folder = checkpoint("llama")
    rig = Rig(folder)
    text = rig.sequence(40)
    rig.forward(Step(text, TOKENS[:30]))
    hidden = [0, 3, 16, 29]
    rig.mask(text, hidden)
    rig.forward(Step(text, TOKENS[30:34], observed=2, detail=LAYERS, masked=True, outputs=0))
    visible = np.tri(34, dtype=np.bool_)
    visible[30:, hidden] = False
    wanted = attentions(folder, TOKENS[:34], visible)
    found = of(rig.attention, 0, 2)
    assert_close(found, wanted[:, :, 32:34].sum(2).mean(1))
    assert (found[:, hidden] == 0).all()


def test_explicit_masks_and_inputs_that_see_nothing(checkpoint: Checkpoints) -> None:
    rig = Rig(checkpoint("llama"))
    text = rig.sequence(40)
    rig.forward(Step(text, TOKENS[:10]))
    # The first input sees slots 2 to 4, the second nothing, the third itself.
    mask = [3, 2, 3, 8, 1, 13, 3, 12, 1, 0]
    for observe, total in ((3, 2.0), (2, 1.0), (1, 1.0)):
        rig.forward(Step(text, TOKENS[10:13], mask=mask, observed=observe, outputs=0, keep=False))
        found = of(rig.attention, 0, 1)[0]
        assert found.sum().item() == pytest.approx(total, abs=1e-5)
        assert found[12].item() == pytest.approx(1.0)
        assert found[[0, 1, *range(5, 12)]].sum().item() == 0


def test_many_queries_go_in_parts(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint("gemma2")
    rig = Rig(folder)
    monkeypatch.setattr(observed, "MAX_SCORES", 1)
    rig.forward(Step(rig.sequence(40), TOKENS[:40], observed=40, detail=HEADS))
    wanted = attentions(folder, TOKENS[:40]).sum(2).flatten(0, 1)
    assert_close(of(rig.attention, 0, len(wanted)), wanted)


def test_wrong_batches_are_refused(checkpoint: Checkpoints) -> None:
    rig = Rig(checkpoint("llama"))
    for observe, detail in ((3, 0), (-1, 0), (1, 3), (1, -1)):
        with pytest.raises(BadBatch):
            rig.forward(Step(rig.sequence(9), [5, 6], observed=observe, detail=detail))
