"""Quantized checkpoints stand for the numbers that transformers reads in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def assert_served_alike(folder: Path) -> None:
    tokens = tokens_of(30)
    rig = Rig(folder)
    (found,) = rig.forward(Step(rig.sequence(30), tokens, outputs=30))
    assert_close(found, expected_logits(folder, tokens))


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
