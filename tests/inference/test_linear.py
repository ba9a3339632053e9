"""Products with fixed weights give the same result whatever way the CPU takes."""

from __future__ import annotations

import pytest
import torch

from pie_inference.layers import linear as layers


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7])
def test_bfloat16_products_are_near_the_exact_ones(
    monkeypatch: pytest.MonkeyPatch, packs: bool, has_bias: bool, rows: int
) -> None:
    if packs and not layers.packs_bfloat16():
        pytest.skip("this CPU has no instructions for packed bfloat16 weights")
    monkeypatch.setattr(layers, "packs_bfloat16", lambda: packs)
    torch.manual_seed(rows)
    weight, x = torch.randn(24, 40).bfloat16(), torch.randn(rows, 40).bfloat16()
    bias = torch.randn(24).bfloat16() if has_bias else None
    residual = torch.randn(rows, 24).bfloat16()
    exact = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    product = layers.linear(weight, bias)
    y, total = product(x), product.add_to(residual.clone(), x)
    assert y.dtype == total.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), exact, rtol=2**-7, atol=2**-5)
    torch.testing.assert_close(total.double(), residual.double() + exact, rtol=2**-7, atol=2**-4)


@pytest.mark.parametrize(
    ("dtype", "has_mkldnn", "packs"),
    [(torch.float32, True, True), (torch.float32, False, False), (torch.bfloat16, True, False)],
)
def test_weights_are_packed_where_the_cpu_can(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, has_mkldnn: bool, packs: bool
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_mkldnn)
    monkeypatch.setattr(layers, "packs_bfloat16", lambda: False)
    product = layers.for_many_rows(torch.ones(24, 40, dtype=dtype))
    assert isinstance(product, layers._Packed) == packs
    assert product(torch.ones(3, 40, dtype=dtype)).tolist() == 3 * [24 * [40.0]]
