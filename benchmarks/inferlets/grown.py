"""A model that computes what pie-tiny does and costs what a larger one costs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

EMBEDDED = Path(__file__).parents[2] / "inference/pie_inference/embedded/pie-tiny"
SPREAD = 0.02  # standard deviation of the weights that are added


def grow(folder: Path, times: int) -> None:
    """Writes pie-tiny with MLPs that many times as wide into a folder.

    What is added to an MLP counts nothing at its end, so that texts, and what a drafter guesses of
    them, stay those of pie-tiny. At 32 times it has 96 million parameters.
    """
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(EMBEDDED, folder)
    random = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if ".mlp." in name:
            last = "down_proj" in name  # [hidden, wide]; the others are [wide, hidden]
            size = list(weight.shape)
            size[last] *= times - 1
            more = torch.zeros(size) if last else torch.randn(size, generator=random) * SPREAD
            weights[name] = torch.cat([weight, more.to(weight.dtype)], int(last)).contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] *= times
    (folder / "config.json").write_text(json.dumps(config))
