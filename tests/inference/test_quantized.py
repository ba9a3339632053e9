"""Quantized checkpoints stand for the numbers that transformers reads in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.families import make_family
from support.model_rig import Rig, Step, assert_close, expected_logits, tokens_of

Tensors = dict[str, torch.Tensor]


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
    (found,) = rig.forward(Step(rig.sequence(30), tokens, outputs=30))
    assert_close(found, expected_logits(as_here or folder, tokens))


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


@pytest.mark.parametrize("name", ["llama", "deepseekv3"])
def test_fp8_by_blocks(name: str, tmp_path: Path) -> None:
    """As DeepSeek V3 is published: a factor for each block of a product, the last ones cut off."""
    folder = make_family(tmp_path / "model", name)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name in [n for n in tensors if n.endswith("proj.weight")]:
        rows, columns = tensors[name].shape
        tensors[name] = (tensors[name] * 200).to(torch.float8_e4m3fn)
        shape = (-(-rows // 16), -(-columns // 32))
        tensors[f"{name}_scale_inv"] = torch.rand(shape, generator=generator) / 200 + 0.001
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain)
    quantize(folder, tensors, quant_method="fp8", weight_block_size=[16, 32])
    for name in [n for n in tensors if n.endswith("_scale_inv")]:
        weight = name.removesuffix("_scale_inv")
        scales = tensors.pop(name).repeat_interleave(16, 0).repeat_interleave(32, 1)
        rows, columns = tensors[weight].shape
        tensors[weight] = tensors[weight].float() * scales[:rows, :columns]
    save_file(tensors, plain / "model.safetensors")
    assert_served_alike(folder, plain)
