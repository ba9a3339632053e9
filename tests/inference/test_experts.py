"""A mixture of experts: all in two products, as a GPU computes it, beside one expert after the
other.
"""

from __future__ import annotations

import pytest
import torch

from pie_inference.layers.experts import Experts, Router, Routing, Stacked, groups
from pie_inference.layers.feed_forward import Clamp, Gate, GatedMlp
from pie_inference.layers.kernels import Kernels
from pie_inference.layers.linear import linear

HIDDEN, INNER = 32, 24


def pair(experts: int, chosen: int, normalized: bool) -> tuple[Experts, Experts]:
    """The same mixture with stacked weights, and without; one that is normalized has biases."""
    generator = torch.Generator().manual_seed(experts)

    def weights(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    biases = (weights(experts, 2 * INNER), weights(experts, HIDDEN)) if normalized else ()
    stacked = Stacked(weights(experts, 2 * INNER, HIDDEN), weights(experts, HIDDEN, INNER), *biases)
    router = Router(linear(weights(experts, HIDDEN)), Routing(chosen, normalized))
    blocks = [
        GatedMlp(
            linear(stacked.gate_up[i], biases[0][i] if biases else None),
            linear(stacked.down[i], biases[1][i] if biases else None),
            Gate("silu"),
        )
        for i in range(experts)
    ]
    return Experts(router, blocks, Gate("silu"), stacked), Experts(router, blocks, Gate("silu"))


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("experts", "chosen"), [(4, 2), (16, 1), (64, 8), (3, 3)])
@pytest.mark.parametrize("tokens", [1, 7, 200])  # with one, most experts have none
def test_grouped_products_are_those_of_each_expert(
    tokens: int, experts: int, chosen: int, normalized: bool
) -> None:
    grouped, one_by_one = pair(experts, chosen, normalized)
    x = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(tokens))
    torch.testing.assert_close(grouped(x), one_by_one(x), atol=1e-5, rtol=1e-5)


def test_no_tokens() -> None:
    for mixture in pair(4, 2, True):
        assert mixture(torch.zeros(0, HIDDEN)).shape == (0, HIDDEN)


@pytest.mark.parametrize(("clamp", "takes"), [(None, True), (torch.add, False)])
def test_a_clamped_gate_takes_no_kernel_of_a_device(clamp: Clamp | None, takes: bool) -> None:
    """Which knows of no clamp."""
    gate, both = Gate("silu", clamp), torch.randn(3, 64)
    gate.use(Kernels(gated={"silu": torch.zeros_like}))
    assert torch.equal(gate(both), torch.zeros(3, 64)) == takes


def test_where_products_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rule: on chips whose kernels find the groups by themselves, and rows that those can
    read.
    """
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert groups(torch.bfloat16, gpu, 64, 96)
    assert not groups(torch.bfloat16, gpu, 64, 100)
    assert not groups(torch.float32, gpu, 64, 96)
    assert not groups(torch.bfloat16, cpu, 64, 96)
    capability = (8, 0)
    assert not groups(torch.bfloat16, gpu, 64, 96)
