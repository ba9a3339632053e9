"""Which class serves which architecture of config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from pie_inference.errors import LoadError
from pie_inference.models.base import Model, ModelShape
from pie_inference.models.llama import Llama, llama_shape, llama_tensors

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read, check and build the models of one architecture."""

    shape: Callable[[Config], ModelShape]
    tensors: Callable[[Config], dict[str, tuple[int, ...]]]
    build: Callable[[Config, MutableMapping[str, torch.Tensor], torch.dtype, torch.device], Model]


ARCHITECTURES = {"LlamaForCausalLM": Architecture(llama_shape, llama_tensors, Llama)}


def architecture_of(config: Config) -> Architecture:
    """The architecture that a config.json names.

    Raises:
        LoadError: if it names none that is supported.
    """
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise LoadError(f"config.json: 'architectures' is {names!r}, not a list")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    raise LoadError(
        f"config.json: architecture {', '.join(map(str, names)) or 'unnamed'} is not supported"
        f" (supported: {', '.join(ARCHITECTURES)})"
    )
