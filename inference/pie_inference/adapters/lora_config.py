"""What an adapter_config.json, as PEFT writes it, asks for; what can't be done is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pie_inference.errors import LoadError

# What changes nothing at inference, or is read below. Whatever else a config sets is refused:
# variants of LoRA compute something else with the same tensors.
KNOWN = {
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "megatron_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "target_modules",
    "task_type",
    "use_rslora",
    "velora_config",
}
NAMES = {"use_dora": "DoRA", "modules_to_save": "replaced modules (modules_to_save)"}
# These initialisations change the weights of the model below the adapter.
CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """How the tensors of an adapter are to be used."""

    rank: int
    alpha: float
    rank_stabilized: bool  # scale `alpha / sqrt(rank)` (Kalajdzievski 2023), else `alpha / rank`
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    targets: str | tuple[str, ...]

    def covers(self, module: str) -> bool:
        """Whether `target_modules` names a module."""
        if isinstance(self.targets, str):
            every = self.targets.lower() == "all-linear"
            return every or re.fullmatch(self.targets, module) is not None
        return any(module == t or module.endswith(f".{t}") for t in self.targets)

    def rank_of(self, module: str) -> int:
        """Rank of a module's tensors."""
        return int(_by_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What the product of a module's tensors is multiplied by."""
        alpha = float(_by_pattern(self.alpha_pattern, module, self.alpha))
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)


def lora_config(config: Mapping[str, Any]) -> LoraConfig:
    """Reads an adapter_config.json.

    Raises:
        LoadError: for what is wrong in it, and what is not supported.
    """
    kind = str(config.get("peft_type"))
    if kind != "LORA":
        raise LoadError(f"adapter_config.json: peft_type {kind!r} is not supported (LORA is)")
    if config.get("bias", "none") != "none":
        raise LoadError(f"adapter_config.json: bias {config['bias']!r} is not supported (none is)")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGING):
        raise LoadError(
            f"adapter_config.json: init_lora_weights {start!r} changes the model's own weights;"
            " convert the adapter to a plain one (path_initial_model_for_weight_conversion of PEFT)"
        )
    for key, value in config.items():
        if key not in KNOWN and value not in (None, False, 0, "", [], {}):
            raise LoadError(f"adapter_config.json: {NAMES.get(key, key)} is not supported")
    try:
        return _read(config)
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise LoadError(f"adapter_config.json cannot be read: {error!r}") from None


def _read(config: Mapping[str, Any]) -> LoraConfig:
    targets = config["target_modules"]
    if isinstance(targets, str):
        re.compile(targets if targets.lower() != "all-linear" else "")
    patterns = {name: dict(config.get(name) or {}) for name in ("rank_pattern", "alpha_pattern")}
    for pattern in (*patterns["rank_pattern"], *patterns["alpha_pattern"]):
        re.compile(pattern)
    ranks = {str(k): int(v) for k, v in patterns["rank_pattern"].items()}
    if min(int(config["r"]), *ranks.values(), 1 << 30) < 1:
        raise ValueError("a rank is below 1")
    return LoraConfig(
        rank=int(config["r"]),
        alpha=float(config.get("lora_alpha", 8)),
        rank_stabilized=bool(config.get("use_rslora", False)),
        rank_pattern=ranks,
        alpha_pattern={str(k): float(v) for k, v in patterns["alpha_pattern"].items()},
        targets=targets if isinstance(targets, str) else tuple(map(str, targets)),
    )


def _by_pattern(patterns: Mapping[str, float], module: str, default: float) -> float:
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
