"""Products of int8 weights with activations rounded to 8 bits, and which checkpoints have them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from inference.test_adapters import wanted
from inference.test_quantized import INT8, plain_copy, products, quantization_of, quantize
from safetensors.torch import load_file, save_file
from support.checkpoints import make_adapter
from support.families import make_family
from support.model_rig import Rig, Step, assert_close, expected_logits, tokens_of

from pie_inference.errors import LoadError
from pie_inference.layers import linear as linear_module
from pie_inference.layers.linear import Int8Linear, multiplies_int8
from pie_inference.models.weights import Weights

needs_vnni = pytest.mark.skipif(
    not multiplies_int8(torch.device("cpu")), reason="this CPU has no instructions for int8"
)
ACTIVATIONS = {**INT8, "strategy": "token", "dynamic": True}


def stored(out: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.randint(-128, 128, (out, inputs), dtype=torch.int8)
    return weight, torch.rand(out) / 1000 + 0.001


@needs_vnni
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 7, 40])
def test_a_product_is_that_of_rounded_rows(dtype: torch.dtype, has_bias: bool, rows: int) -> None:
    torch.manual_seed(rows)
    weight, scale = stored(24, 200)
    x = (torch.randn(rows, 200) * torch.logspace(-3, 3, rows)[:, None]).to(dtype)
    x[:1] = 0  # a row without any largest number
    bias = torch.randn(24).to(dtype) if has_bias else None
    residual = torch.randn(rows, 24).to(dtype)
    product = Int8Linear(weight, scale, bias)
    step = x.float().abs().amax(1, keepdim=True).clamp_(min=1e-30) / 127
    rounded = (x.float() / step).round().to(torch.int64)
    exact = (rounded @ weight.long().t()).double() * step * scale
    if bias is not None:
        exact += bias.double()
    relative = 1e-5 if dtype == torch.float32 else 2**-7
    close = partial(torch.testing.assert_close, rtol=relative, atol=2 * relative)
    close(product(x).double(), exact)
    total = product.add_to(residual.clone(), x)
    assert product(x).dtype == total.dtype == dtype
    close(total.double(), residual.double() + exact)


@needs_vnni
def test_rounding_activations_costs_less_than_a_percent() -> None:
    torch.manual_seed(0)
    weight, scale = stored(256, 512)
    x = torch.randn(32, 512)
    exact = x @ (weight * scale[:, None]).t()
    found = Int8Linear(weight, scale, None)(x)
    assert 0 < (found - exact).norm() / exact.norm() < 0.01


@needs_vnni
@pytest.mark.parametrize("smallest", [40 * 16, 40 * 16 + 1])
def test_only_large_products_are_in_int8(monkeypatch: pytest.MonkeyPatch, smallest: int) -> None:
    """Several products in one count together; what is too small is widened."""
    monkeypatch.setattr(linear_module, "SMALLEST_INT8", smallest)
    first, first_scale = stored(24, 16)
    second, second_scale = stored(16, 16)
    found = {
        "a.weight": first,
        "a.weight_scale": first_scale[:, None],
        "b.weight": second,
        "b.weight_scale": second_scale[:, None],
        "b.bias": torch.randn(16),
    }
    wanted = torch.cat([first * first_scale[:, None], second * second_scale[:, None]])
    bias = torch.cat([torch.zeros(24), found["b.bias"]])
    weights = Weights(found, 1e-6, 0.0, torch.float32)
    made = weights.linear("a", "b")
    assert isinstance(made, Int8Linear) == (smallest == 40 * 16)
    assert not found
    assert (weights.sites["b"].start, weights.sites["b"].size) == (24, 16)
    x = torch.randn(3, 16)
    torch.testing.assert_close(made(x), x @ wanted.t() + bias, rtol=0, atol=0.1)


def w8a8(folder: Path, **activations: Any) -> Path:
    """Makes a checkpoint one of int8 weights by its library; returns a plain one of the same
    numbers.
    """
    library = pytest.importorskip("compressed_tensors")
    tensors = load_file(folder / "model.safetensors")
    plain = dict(tensors)
    group = {"targets": ["Linear"], "weights": INT8, "input_activations": activations}
    scheme = library.quantization.QuantizationScheme(**group)
    compressor = library.compressors.BaseCompressor.get_value_from_registry("int-quantized")
    for name in products(tensors):
        weight = tensors.pop(name)
        packed = compressor.compress({"weight": weight, **quantization_of(weight, INT8)}, scheme)
        plain[name] = compressor.decompress(packed, scheme)["weight"].float()
        tensors |= {name.removesuffix("weight") + part: found for part, found in packed.items()}
    as_here = plain_copy(folder, folder.parent / "plain", plain)
    quantize(
        folder,
        tensors,
        quant_method="compressed-tensors",
        format="int-quantized",
        config_groups={"group_0": {**group, "format": "int-quantized"}},
        ignore=["lm_head"],
    )
    return as_here


def logits_of(folder: Path) -> torch.Tensor:
    rig = Rig(folder)
    (found,) = rig.forward(Step(rig.sequence(30), tokens_of(30), outputs=30))
    return found


@needs_vnni
def test_a_checkpoint_for_int8_activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its products are in int8 here; its logits lie near those of the widened weights."""
    folder = make_family(tmp_path / "model", "qwen3")
    as_here = w8a8(folder, **ACTIVATIONS)
    wanted = expected_logits(as_here, tokens_of(30))
    assert_close(logits_of(folder), wanted)  # small products are exact
    monkeypatch.setattr(linear_module, "SMALLEST_INT8", 1)
    error = (logits_of(folder) - wanted).norm() / wanted.norm()
    assert 1e-4 < error < 0.05


@needs_vnni
def test_adapters_are_added_to_products_in_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_family(tmp_path / "model", "qwen3")
    as_here = w8a8(folder, **ACTIVATIONS)
    adapter = make_adapter(as_here, tmp_path / "adapter", target_modules="all-linear")
    monkeypatch.setattr(linear_module, "SMALLEST_INT8", 1)
    rig = Rig(folder, adapters={"a": str(adapter)})
    tokens = tokens_of(30)
    (found,) = rig.forward(Step(rig.sequence(30), tokens, outputs=30, adapter=0))
    exact, without = wanted(as_here, adapter, tokens), wanted(as_here, None, tokens)
    assert 1e-4 < (found - exact).norm() / exact.norm() < 0.05
    assert (without - exact).norm() / exact.norm() > 0.5


@needs_vnni
@pytest.mark.parametrize(
    "other", [{"dynamic": False, "strategy": "tensor"}, {"symmetric": False}, {"num_bits": 4}]
)
def test_other_activations_stay_in_the_models_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    monkeypatch.setattr(linear_module, "SMALLEST_INT8", 1)
    folder = make_family(tmp_path / "model", "qwen3")
    as_here = w8a8(folder, **{**ACTIVATIONS, **other})
    assert_close(logits_of(folder), expected_logits(as_here, tokens_of(30)))


def test_without_the_instructions_weights_are_widened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_module, "SMALLEST_INT8", 1)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    folder = make_family(tmp_path / "model", "qwen3")
    as_here = w8a8(folder, **ACTIVATIONS)
    assert_close(logits_of(folder), expected_logits(as_here, tokens_of(30)))


@needs_vnni
def test_what_is_no_number_or_no_int8_is_refused(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "qwen3")
    w8a8(folder, **ACTIVATIONS)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    scale = tensors[f"{name}_scale"].clone()
    tensors[f"{name}_scale"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(LoadError, match=f"{name}_scale holds numbers that are not finite"):
        Rig(folder)
    tensors |= {name: tensors[name].float(), f"{name}_scale": scale}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(LoadError, match=f"{name} holds torch.float32, not int8"):
        Rig(folder)
