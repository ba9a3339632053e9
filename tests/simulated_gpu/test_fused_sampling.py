"""Triton's kernels that choose tokens, interpreted, beside `choose` on the CPU: they take the same
tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.sampler_rows import join, make_logits, parameters, row

from pie_inference.cuda.fused_sampling import FusedSampling
from pie_inference.sampling.choose import NOTHING, Parameters, choose

SAMPLERS = 4096
NO_MASKS = np.zeros((0, 0), np.uint32)


@pytest.fixture(scope="module")
def fused() -> FusedSampling:
    from pie_inference.cuda import sampling_kernels

    return FusedSampling(
        sampling_kernels, torch.full((SAMPLERS,), -5, dtype=torch.int64, device="cuda")
    )


def chosen(
    fused: FusedSampling,
    logits: torch.Tensor,
    given_parameters: Parameters,
    masked: list[int] | None = None,
    masks: NDArray[np.uint32] = NO_MASKS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and log-probabilities `[n]`, on the host; the tokens are kept for the samplers,
    too.
    """
    count = len(logits)
    samplers = np.arange(count, dtype=np.int32)[::-1].copy()
    rows = np.full(count, -1, np.int32) if masked is None else np.array(masked, np.int32)
    table = fused.table(given_parameters, samplers, samplers + 7, rows)
    assert fused.embeds_of(table).tolist() == (samplers + 7).tolist()
    found = fused.choose(logits.to("cuda"), table, masks).cpu()
    assert torch.equal(fused._chosen[:count].cpu().flip(0), found[0].long())
    return found[0].long(), found[1].view(torch.float32)


VALUES = st.sampled_from([-np.inf, -30.0, -1.0, 0.0, 0.25, 4.0])


@given(rows=st.lists(row, min_size=1, max_size=4), data=st.data())
@settings(max_examples=8)
def test_tokens_are_those_of_the_cpu(
    fused: FusedSampling, rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Logits of few values, so that many are equal; any filters; a last block that is not full."""
    vocabulary = data.draw(st.sampled_from([40, 2100]))
    values = data.draw(st.lists(VALUES, min_size=1, max_size=6, unique=True))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    logits = torch.from_numpy(generator.choice(np.array(values, np.float32), (len(rows), 40)))
    logits = logits.repeat(1, -(-vocabulary // 40))[:, :vocabulary].contiguous()
    together = join([parameters(1, **r) for r in rows])
    tokens, logprobs = chosen(fused, logits, together)
    assert tokens.tolist() == choose(logits, together).tolist()
    found = tokens >= 0
    exact = logits.log_softmax(1).gather(1, tokens.clamp(min=0)[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs[found], exact[found], atol=1e-4, rtol=1e-4)


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"top_k": 20},
    {"top_p": 0.5},
    {"top_k": 900, "top_p": 0.97, "temperature": 3.0},
    {"top_k": 30, "top_p": 0.6, "min_p": 0.01},
    {"min_p": 0.2, "temperature": 2.0},
    {"temperature": 0.0},
]


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 3.0), (torch.bfloat16, 0.3)])
def test_a_batch_of_all_kinds(fused: FusedSampling, dtype: torch.dtype, scale: float) -> None:
    """Of 4200 tokens: several blocks of both kernels, the last ones not full."""
    logits = torch.stack([make_logits(4200, seed, scale) for seed in range(len(FILTERS))]).to(dtype)
    together = join([parameters(1, **kind) for kind in FILTERS])
    assert chosen(fused, logits, together)[0].tolist() == choose(logits.float(), together).tolist()


def test_masks(fused: FusedSampling) -> None:
    """Two rows share one, one has its own that allows nothing, one has none."""
    generator = np.random.default_rng(5)
    allowed = np.zeros((2, 96), np.bool_)
    allowed[0, generator.choice(70, 9, replace=False)] = True
    words = np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)
    logits = torch.stack([make_logits(70, seed) for seed in range(4)])
    masked = [0, -1, 0, 1]
    cut = logits.clone()
    cut[[0, 2]] = cut[[0, 2]].masked_fill(~torch.from_numpy(allowed[0, :70]), -torch.inf)
    cut[3] = -torch.inf
    ways: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0},
        {},
        {"top_p": 0.5},
        {"top_k": 3, "top_p": 0.9},
    )
    for filters in ways:
        for step in range(2):
            how = parameters(4, first_step=step, **filters)
            tokens, logprobs = chosen(fused, logits, how, masked, words)
            assert tokens.tolist() == choose(cut, how).tolist()
            assert tokens[3] == NOTHING
            exact = logits.log_softmax(1).gather(1, tokens.clamp(min=0)[:, None]).squeeze(1)
            torch.testing.assert_close(logprobs[:3], exact[:3], atol=1e-5, rtol=1e-5)


def test_what_is_no_number_counts_as_ruled_out(fused: FusedSampling) -> None:
    logits = torch.zeros(4, 50)
    logits[0] = torch.nan
    logits[1] = -torch.inf
    logits[2, 3:] = torch.nan
    logits[3, 9] = torch.inf
    for filters in ({"temperature": 0.0}, {}, {"top_p": 0.4}, {"top_k": 2}):
        tokens, _ = chosen(fused, logits, parameters(4, **filters))
        assert tokens[:2].tolist() == [NOTHING] * 2
        assert tokens[2] in (0, 1, 2)
        assert tokens[3] == 9


def test_a_search_among_neighbouring_numbers_ends(fused: FusedSampling) -> None:
    """What top-k keeps ends within ties, or where no number lies between two logits."""
    logits = torch.full((4, 64), 1.0)
    logits[0, ::2] = float(np.nextafter(np.float32(1), np.float32(2)))
    logits[1, :3] = 1.0000002
    logits[2] = torch.linspace(-1e-38, 1e-38, 64)
    for temperature in (1e-38, 1.0):
        for k in (2, 40):
            how = parameters(4, temperature=temperature, top_k=k, top_p=0.7)
            tokens, _ = chosen(fused, logits, how)
            assert tokens.tolist() == choose(logits, how).tolist()
