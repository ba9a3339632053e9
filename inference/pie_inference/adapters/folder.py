"""Adapters as PEFT saves them: a folder with a config and the two small matrices of each module."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pie_inference.adapters.lora_config import LoraConfig, lora_config
from pie_inference.errors import LoadError
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import Adapter, LinearSite, LowRank

CONFIG_FILE, TENSOR_FILE = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.weight")


def load_adapter(
    folder: Path,
    sites: Mapping[str, LinearSite],
    rename: Callable[[str], str | None],
    dtype: torch.dtype,
    device: torch.device,
) -> Adapter:
    """Reads an adapter for a model.

    Args:
        folder: with both files.
        sites: of the model, by the name of the module in its checkpoint.
        rename: from the name of a tensor in a checkpoint to the one that the model uses.
        dtype: of the model.
        device: of the model.

    Raises:
        LoadError: naming the folder and what is wrong, unsupported, or does not fit the model.
    """
    try:
        config = lora_config(_read_config(folder))
        pairs = _read_pairs(folder / TENSOR_FILE)
        return _assemble(config, pairs, sites, rename, dtype, device)
    except LoadError as error:
        raise LoadError(f"adapter {folder}: {error}") from None


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoadError(f"there is no {CONFIG_FILE}; name a folder that PEFT has saved") from None
    except (OSError, ValueError) as error:
        raise LoadError(f"{CONFIG_FILE} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"{CONFIG_FILE} holds no JSON object")
    return value


def _read_pairs(file: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The matrices `A` `[r, in]` and `B` `[out, r]` of each module."""
    if not file.is_file():
        raise LoadError(f"there is no {TENSOR_FILE}; save the adapter with safetensors")
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                match = _TENSOR.fullmatch(name)
                if match is None:
                    raise LoadError(f"tensor {name} is not of a LoRA of a linear layer")
                pairs.setdefault(match[1], {})[match[2]] = opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{TENSOR_FILE} cannot be read: {error}") from None
    if not pairs:
        raise LoadError(f"{TENSOR_FILE} is empty")
    return pairs


def _assemble(
    config: LoraConfig,
    pairs: Mapping[str, Mapping[str, torch.Tensor]],
    sites: Mapping[str, LinearSite],
    rename: Callable[[str], str | None],
    dtype: torch.dtype,
    device: torch.device,
) -> Adapter:
    """Puts the modules of one layer side by side: one product of each kind, as the layer itself
    has.
    """
    layers: dict[Linear, list[tuple[LinearSite, torch.Tensor, torch.Tensor]]] = {}
    for module, pair in pairs.items():
        renamed = rename(f"{module}.weight")
        site = None if renamed is None else sites.get(renamed.removesuffix(".weight"))
        if site is None:
            raise LoadError(
                f"module {module} cannot be adapted: the model has no such linear layer in its"
                " blocks"
            )
        if not config.covers(module):
            raise LoadError(f"module {module} has tensors, but target_modules does not name it")
        down, up = _checked(module, pair, site, config.rank_of(module))
        up = up.float() * config.scale_of(module)
        layers.setdefault(site.linear, []).append((site, down.float(), up))
    return {layer: _joined(parts, dtype, device) for layer, parts in layers.items()}


def _checked(
    module: str, pair: Mapping[str, torch.Tensor], site: LinearSite, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    if set(pair) != {"A", "B"}:
        raise LoadError(f"module {module} has one of lora_A and lora_B; it needs both")
    for name, shape in (("A", (rank, site.inputs)), ("B", (site.size, rank))):
        found = tuple(pair[name].shape)
        if found != shape:
            raise LoadError(
                f"module {module}: lora_{name} is {list(found)}, and the model and the rank want"
                f" {list(shape)}"
            )
        if not pair[name].is_floating_point():
            raise LoadError(f"module {module}: lora_{name} holds {pair[name].dtype}")
    return pair["A"], pair["B"]


def _joined(
    parts: list[tuple[LinearSite, torch.Tensor, torch.Tensor]],
    dtype: torch.dtype,
    device: torch.device,
) -> LowRank:
    total = sum(down.shape[0] for _, down, _ in parts)
    joined = torch.zeros(total, parts[0][0].outputs)
    at = 0
    for site, down, up in parts:
        joined[at : at + down.shape[0], site.start : site.start + site.size] = up.t()
        at += down.shape[0]
    downs = torch.cat([down for _, down, _ in parts]).t().contiguous()
    return LowRank(downs.to(device, dtype), joined.to(device, dtype))
