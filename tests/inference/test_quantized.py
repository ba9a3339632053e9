"""Quantized checkpoints stand for the numbers that transformers reads in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.families import make_family
from support.model_rig import Rig, assert_close, expected_logits, tokens_of

from pie_inference.errors import LoadError

Tensors = dict[str, torch.Tensor]
Rounded = tuple[Tensors, torch.Tensor]  # what a file has for a weight, and the same in plain


def quantize(folder: Path, tensors: Tensors, **config: Any) -> None:
    """Gives a checkpoint other tensors, and says how they are quantized."""
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    file = folder / "config.json"
    told = {**json.loads(file.read_text()), "quantization_config": config}
    file.write_text(json.dumps(told))


def assert_served_alike(folder: Path, as_here: Path | None = None) -> None:
    """As transformers serves it, or serves the plain checkpoint of the same numbers."""
    tokens = tokens_of(30)
    rig = Rig(folder)
    method = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]
    assert rig.model.description.quantized == method
    assert_close(rig.read(tokens), expected_logits(as_here or folder, tokens), few_bits=True)


def test_mxfp4(tmp_path: Path) -> None:
    """The experts of gpt-oss: numbers of four bits, 32 of which share a power of two."""
    folder = make_family(tmp_path / "model", "gptoss")
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inner, outer = tensors.pop(name).shape
        shape = (experts, outer, inner // 32)
        tensors[f"{name}_blocks"] = torch.randint(
            0, 256, (*shape, 16), generator=generator, dtype=torch.uint8
        )
        tensors[f"{name}_scales"] = torch.randint(
            122, 126, shape, generator=generator, dtype=torch.uint8
        )
    quantize(
        folder, tensors, quant_method="mxfp4", modules_to_not_convert=["model.layers.*.mlp.router"]
    )
    assert_served_alike(folder)


def plain_copy(folder: Path, target: Path, tensors: Tensors) -> Path:
    """The checkpoint with other tensors."""
    shutil.copytree(folder, target)
    save_file({k: v.contiguous() for k, v in tensors.items()}, target / "model.safetensors")
    return target


def assert_rounded(
    folder: Path, family: str, rounded: Callable[[str, torch.Tensor], Rounded], **config: Any
) -> Path:
    """A model, each product's weight `rounded`, is served as one with the same numbers; its
    folder. The names of what the file has are ends of tensors' names.
    """
    model = make_family(folder / "model", family)
    tensors = load_file(model / "model.safetensors")
    plain = dict(tensors)
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        parts, plain[name] = rounded(name, tensors.pop(name))
        tensors |= {name.removesuffix("weight") + end: part for end, part in parts.items()}
    as_here = plain_copy(model, folder / "plain", plain)
    quantize(model, tensors, **config)
    assert_served_alike(model, as_here)
    return model


@pytest.mark.parametrize(
    ("end", "shape"),
    [("_scale", ()), ("_scale_inv", (1,)), ("_scale_inv", (1, 1)), ("_scale", (-1, 1))],
)
def test_fp8_by_weights_and_rows(end: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    def rounded(_: str, whole: torch.Tensor) -> Rounded:
        weight = (whole * 200).to(torch.float8_e4m3fn)
        scales = torch.rand(len(weight) if -1 in shape else 1) / 200 + 0.001
        parts = {"weight": weight, f"weight{end}": scales.reshape(shape)}
        return parts | {"input_scale": torch.ones(())}, weight.float() * scales[:, None]

    assert_rounded(tmp_path, "llama", rounded, quant_method="fp8", activation_scheme="static")


@pytest.mark.parametrize("name", ["llama", "deepseekv3"])
def test_fp8_by_blocks(name: str, tmp_path: Path) -> None:
    """As DeepSeek V3 is published: a factor for each block of a product, the last ones cut off."""
    generator = torch.Generator().manual_seed(0)

    def rounded(_: str, whole: torch.Tensor) -> Rounded:
        rows, columns = whole.shape
        weight = (whole * 200).to(torch.float8_e4m3fn)
        scales = torch.rand(-(-rows // 16), -(-columns // 32), generator=generator) / 200 + 0.001
        wide = scales.repeat_interleave(16, 0).repeat_interleave(32, 1)
        parts = {"weight": weight, "weight_scale_inv": scales}
        return parts, weight.float() * wide[:rows, :columns]

    assert_rounded(tmp_path, name, rounded, quant_method="fp8", weight_block_size=[16, 32])


def packed_words(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Consecutive numbers of the last dimension in words, the first in the lowest bits."""
    each = numbers.reshape(len(numbers), -1, 32 // bits) << torch.arange(0, 32, bits)
    words = each.sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


@pytest.mark.parametrize(("bits", "version"), [(4, "gptq"), (8, "gptq"), (4, "gptq_v2")])
def test_gptq(bits: int, version: str, tmp_path: Path) -> None:
    """Inputs in groups of 16; by activation order, in any order."""
    generator = torch.Generator().manual_seed(0)

    def rounded(name: str, whole: torch.Tensor) -> Rounded:
        out, inputs = whole.shape
        groups = inputs // 16
        numbers = torch.randint(0, 1 << bits, (inputs, out), generator=generator)
        zeros = torch.randint(1, 1 << bits, (groups, out), generator=generator)
        scales = torch.rand(groups, out, generator=generator) / (1 << bits)
        order = torch.arange(inputs) // 16
        if "down" in name:
            order = order[torch.randperm(inputs, generator=generator)]
        parts = {
            "qweight": packed_words(numbers.t(), bits).t(),
            "qzeros": packed_words(zeros - int(version == "gptq"), bits),
            "scales": scales,
            "g_idx": order.int(),
        }
        return parts, ((numbers - zeros[order]) * scales[order]).t()

    told = {"quant_method": "gptq", "bits": bits, "checkpoint_format": version}
    assert_rounded(tmp_path, "qwen2", rounded, **told)


def test_awq(tmp_path: Path) -> None:
    """As the converter of compressed-tensors reads it."""
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters.autoawq")
    generator = torch.Generator().manual_seed(0)
    converter = converters.AutoAWQConverter(group_size=16)

    def words(*shape: int) -> torch.Tensor:
        return torch.randint(-(1 << 31), 1 << 31, shape, generator=generator).to(torch.int32)

    def rounded(_: str, whole: torch.Tensor) -> Rounded:
        out, inputs = whole.shape
        packed, zeros = words(inputs, out // 8), words(inputs // 16, out // 8)
        scales = torch.rand(inputs // 16, out, generator=generator) / 16
        numbers, scale, zero = converter._convert_gemm_module(packed, scales, zeros)
        wide = [part.float().repeat_interleave(16, 1) for part in (zero, scale)]
        parts = {"qweight": packed, "qzeros": zeros, "scales": scales}
        return parts, (numbers.float() - wide[0]) * wide[1]

    told = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}
    assert_rounded(tmp_path, "llama", rounded, **told)


INT4 = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 16}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}


@pytest.mark.parametrize(
    ("form", "weights", "usual", "own"),
    [
        ("pack-quantized", INT4, "mixed-precision", "pack-quantized"),
        ("pack-quantized", INT4, "pack-quantized", None),
        ("pack-quantized", INT4, None, None),  # what its numbers are tells the format
        ("pack-quantized", INT4, "mixed-precision", None),
        ("int-quantized", INT8, "pack-quantized", "int-quantized"),
        ("int-quantized", INT8, "int-quantized", None),
        ("naive-quantized", INT8, "naive-quantized", None),
        ("float-quantized", FP8, "float-quantized", "float-quantized"),
        ("float-quantized", FP8, "float-quantized", None),
    ],
)
def test_compressed_tensors(
    form: str, weights: dict[str, Any], usual: str | None, own: str | None, tmp_path: Path
) -> None:
    """Written and read back by its library; the head is left out. A group may name its format, or
    the table that of all.
    """
    library = pytest.importorskip("compressed_tensors")
    scheme = library.quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    compressor = library.compressors.BaseCompressor.get_value_from_registry(form)

    def rounded(_: str, weight: torch.Tensor) -> Rounded:
        packed = compressor.compress({"weight": weight, **scales_of(weight, weights)}, scheme)
        plain = compressor.decompress(packed, scheme)["weight"].float()
        return {**packed, "input_scale": torch.ones(1)}, plain  # activations stay as they are

    folder = assert_rounded(
        tmp_path,
        "qwen3",
        rounded,
        quant_method="compressed-tensors",
        **({"format": usual} if usual else {}),
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights, "format": own}},
        ignore=["lm_head"],
    )
    assert Rig(folder).model.description.few_bits == ([8] if weights is INT8 else [])


def scales_of(weight: torch.Tensor, weights: dict[str, Any]) -> Tensors:
    """Scales, and zeros if there are any, from the largest numbers."""
    if weights["strategy"] == "tensor":
        return {"weight_scale": weight.abs().max().view(1) / 448}
    if weights["strategy"] == "channel":
        return {"weight_scale": weight.abs().amax(1, keepdim=True) / 127}
    groups = weight.reshape(len(weight), -1, 16)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = (high - low) / 15
    return {"weight_scale": scale, "weight_zero_point": (-8 - low / scale).round().to(torch.int8)}


@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes(nested: bool, tmp_path: Path) -> None:
    """As bitsandbytes 0.50 saves it: blocks of 64 numbers, of 256 factors, the high half first."""
    table = torch.linspace(-1, 1, 16) ** 3
    generator = torch.Generator().manual_seed(0)

    def rounded(_: str, weight: torch.Tensor) -> Rounded:
        numbers = torch.randint(0, 16, (weight.numel(),), generator=generator, dtype=torch.uint8)
        factors = torch.rand(-(-weight.numel() // 64), generator=generator) * 0.2
        said: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": list(weight.shape)}
        parts = {"weight.absmax": factors, "weight.quant_map": table.clone()}
        if nested:
            names = torch.linspace(-1, 1, 256)
            inner = torch.randint(0, 256, (len(factors),), generator=generator, dtype=torch.uint8)
            outer = torch.full((-(-len(factors) // 256),), 0.05)
            factors = names[inner.int()] * 0.05 + 0.1
            said |= {"nested_blocksize": 256, "nested_offset": 0.1}
            parts |= {"weight.absmax": inner, "weight.nested_absmax": outer}
            parts["weight.nested_quant_map"] = names
        state = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        parts["weight.quant_state.bitsandbytes__nf4"] = state
        parts["weight"] = (numbers[::2] << 4 | numbers[1::2])[:, None]
        wide = factors.repeat_interleave(64)[: weight.numel()]
        return parts, (table[numbers.int()] * wide).view(weight.shape)

    assert_rounded(tmp_path, "llama", rounded, quant_method="bitsandbytes", load_in_4bit=True)


@pytest.mark.parametrize("algorithm", ["FP8", "NVFP4"])
def test_modelopt(algorithm: str, tmp_path: Path) -> None:
    """Beside the weights lie scales of activations, of keys and of values."""
    random = torch.Generator().manual_seed(0)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def rounded(name: str, weight: torch.Tensor) -> Rounded:
        parts = {"input_scale": torch.tensor(1.5)}
        parts |= {f"{of}_scale": torch.tensor(2.0) for of in "kv" if f".{of}_proj." in name}
        if algorithm == "FP8":
            whole = weight.abs().amax() / 448
            fp8 = (weight / whole).to(torch.float8_e4m3fn)
            return parts | {"weight": fp8, "weight_scale": whole}, fp8.float() * whole
        rows, columns = weight.shape
        low, high = torch.randint(0, 16, (2, rows, columns // 2), generator=random)
        scales = torch.rand(rows, columns // 16, generator=random).to(torch.float8_e4m3fn)
        parts |= {"weight": (low + 16 * high).to(torch.uint8), "weight_scale": scales}
        nibbles = torch.stack([low, high], -1).flatten(1)
        signed = table[nibbles % 8] * torch.where(nibbles < 8, 1.0, -1.0)
        parts["weight_scale_2"] = torch.tensor(0.05)
        return parts, signed * scales.float().repeat_interleave(16, 1) * 0.05

    assert_rounded(tmp_path, "llama", rounded, quant_method="modelopt", quant_algo=algorithm)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "llama")
    tensors = load_file(folder / "model.safetensors")
    groups = {"g": {"targets": ["Linear"], "weights": INT8, "format": "marlin-24"}}
    library = "compressed-tensors"

    def refused(told: str, method: str, **config: Any) -> None:
        quantize(folder, tensors, quant_method=method, **config)
        with pytest.raises(LoadError, match=told):
            Rig(folder)

    refused("version 'gemv', is not supported", "awq", version="gemv")
    refused(f"quantization_config of {library}: .*marlin-24", library, config_groups=groups)
    refused("bitsandbytes of 8 bits is not supported", "bitsandbytes", load_in_8bit=True)
    refused("GPTQ of 3 bits is not supported", "gptq", bits=3)
    tensors["model.layers.0.mlp.down_proj.qweight"] = torch.zeros(4, 4, dtype=torch.int32)
    refused(r"lacks model.layers.0.mlp.down_proj.qzeros", "gptq", bits=4)
