"""Adapters: LoRAs and DoRAs, as PEFT saves them, which each sequence may have, or not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from safetensors import SafetensorError, safe_open

from pie_inference.errors import BadBatch, LoadError
from pie_inference.layers.grouped import LANES
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import Adapter, AdapterRows, LinearSite, LowRank, Magnitude
from pie_py.models.checkpoint_files import BadFile, checkpoint_file, read_object
from pie_py.wire.plan import Int32

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
    "use_dora",
    "use_rslora",
    "velora_config",
}
NAMES = {"modules_to_save": "replaced modules (modules_to_save)"}
INPUTS = 256  # of a layer that are looked at together
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
    dora: bool = False

    def covers(self, module: str) -> bool:
        """True if `target_modules` names a module."""
        if isinstance(self.targets, str):
            every = self.targets.lower() == "all-linear"
            return every or re.fullmatch(self.targets, module) is not None
        return any(module == t or module.endswith(f".{t}") for t in self.targets)

    def rank_of(self, module: str) -> int:
        """Rank of a module's tensors."""
        return int(_by_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor of the product of a module's tensors."""
        alpha = float(_by_pattern(self.alpha_pattern, module, self.alpha))
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)


def lora_config(config: Mapping[str, Any]) -> LoraConfig:
    """Reads an adapter_config.json. Raises `LoadError` for what is wrong in it, and what is not
    supported.
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
        dora=bool(config.get("use_dora", False)),
    )


def _by_pattern(patterns: Mapping[str, float], module: str, default: float) -> float:
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


CONFIG_FILE, TENSOR_FILE = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(.+)\.lora_([AB](?=\.weight)|magnitude_vector)(?:\.weight)?"
)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        value = read_object(folder, CONFIG_FILE)
    except BadFile as error:
        raise LoadError(str(error)) from None
    if value is None:
        raise LoadError(f"there is no {CONFIG_FILE}; name a folder that PEFT has saved")
    return value


def _read_pairs(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The matrices `A` `[r, in]` and `B` `[out, r]` of each module, and a DoRA's
    `magnitude_vector` `[out]`.
    """
    try:
        file = checkpoint_file(folder, TENSOR_FILE)
    except BadFile as error:
        raise LoadError(str(error)) from None
    if file is None:
        raise LoadError(f"there is no {TENSOR_FILE}; save the adapter with safetensors")
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                match = _TENSOR.fullmatch(name)
                if match is None:
                    raise LoadError(f"tensor {name} {_why_not(name)}")
                pairs.setdefault(match[1], {})[match[2]] = opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{TENSOR_FILE} cannot be read: {error}") from None
    if not pairs:
        raise LoadError(f"{TENSOR_FILE} is empty")
    return pairs


def _why_not(name: str) -> str:
    """The reason of what an adapter cannot change, by the name that it gives it."""
    parts = {"embed": "is of the embedding", "lm_head": "is of the head"}
    told = (what for part, what in parts.items() if part in name)
    what = next(told, "is not of a LoRA of a linear layer")
    return f"cannot be adapted: it {what}; linear layers in the model's blocks can"


def _checked(
    module: str, pair: Mapping[str, torch.Tensor], site: LinearSite, rank: int, dora: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if not {"A", "B"} <= set(pair):
        raise LoadError(f"module {module} has one of lora_A and lora_B; it needs both")
    if dora != ("magnitude_vector" in pair):
        raise LoadError(
            f"module {module}: lora_magnitude_vector is there or lacks against `use_dora`"
        )
    shapes = {"A": (rank, site.inputs), "B": (site.size, rank), "magnitude_vector": (site.size,)}
    for name in pair:
        shape = shapes[name]
        found = tuple(pair[name].shape)
        if found != shape:
            raise LoadError(
                f"module {module}: lora_{name} is {list(found)}, and the model and the rank want"
                f" {list(shape)}"
            )
        if not pair[name].is_floating_point():
            raise LoadError(f"module {module}: lora_{name} holds {pair[name].dtype}")
    return pair["A"], pair["B"]


class _Part(NamedTuple):
    """An adapter's change of one module."""

    site: LinearSite
    down: torch.Tensor  # [r, in]
    up: torch.Tensor  # [size, r], the scale included
    share: torch.Tensor | None = None  # [size], of a DoRA: see `Magnitude`


class AdapterTable:
    """Loads and forgets adapters, and finds which rows of a batch have one."""

    def __init__(
        self,
        sites: Mapping[str, LinearSite],
        rename: Callable[[str], str | None],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Takes the sites of a model, by the name of the module in its checkpoint, and what leads
        from the name of a tensor there to the one that the model uses.
        """
        self._sites = sites
        self._rename = rename
        self._dtype = dtype
        self._device = device
        self._adapters: dict[int, Adapter] = {}

    def load(self, slot: int, folder: Path) -> None:
        """Reads an adapter into a slot. Raises `LoadError` naming the folder and what is wrong,
        not supported, or does not fit the model, or that there is no memory for it.
        """
        try:
            with torch.inference_mode():
                self._adapters[slot] = self._read(folder)
        except LoadError as error:
            raise LoadError(f"adapter {folder}: {error}") from None
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise LoadError(f"adapter {folder}: not enough memory: {error}") from None

    def _read(self, folder: Path) -> Adapter:
        """The modules of one layer side by side: one product of each kind, as the layer has."""
        config = lora_config(_read_config(folder))
        layers: dict[Linear, list[_Part]] = {}
        for module, pair in _read_pairs(folder).items():
            renamed = self._rename(f"{module}.weight")
            site = None if renamed is None else self._sites.get(renamed.removesuffix(".weight"))
            if site is None:
                raise LoadError(f"module {module} {_why_not(module)}")
            if not config.covers(module):
                raise LoadError(f"module {module} has tensors, but target_modules does not name it")
            down, up = _checked(module, pair, site, config.rank_of(module), config.dora)
            up = up.float() * config.scale_of(module)
            for name, matrix in (("A", down), ("B", up)):
                if not matrix.to(self._dtype).isfinite().all():
                    kind = str(self._dtype).removeprefix("torch.")
                    raise LoadError(
                        f"tensor {module}.lora_{name}.weight, with its scale, holds numbers that"
                        f" are not finite in {kind}: save the adapter again"
                    )
            part = _Part(site, down.float(), up)
            if config.dora:
                part = self._turned(part, pair["magnitude_vector"].float())
            layers.setdefault(site.linear, []).append(part)
        return Adapter({layer: self._joined(parts) for layer, parts in layers.items()})

    def _turned(self, part: _Part, magnitudes: torch.Tensor) -> _Part:
        """A part of a DoRA: the outputs of the changed weight have these magnitudes. To know that
        weight, its layer is given one input at a time.
        """
        site, down, up, _ = part
        own = slice(site.start, site.start + site.size)
        bias = self._bias(site)[own].cpu()
        squares = torch.zeros(site.size)
        for start in range(0, site.inputs, INPUTS):
            one = torch.eye(site.inputs, device=self._device, dtype=self._dtype)[
                start : start + INPUTS
            ]
            weight = site.linear.widely(one)[:, own].float().cpu() - bias
            squares += (weight + down.t()[start : start + INPUTS] @ up.t()).square().sum(0)
        share = magnitudes / squares.sqrt()
        if not share.isfinite().all():
            raise LoadError("a magnitude is not finite: save the adapter again")
        return _Part(site, down, up * share[:, None], share - 1)

    def _bias(self, site: LinearSite) -> torch.Tensor:
        nothing = torch.zeros(1, site.inputs, device=self._device, dtype=self._dtype)
        return site.linear.widely(nothing)[0].float()

    def _joined(self, parts: list[_Part]) -> LowRank:
        total = sum(part.down.shape[0] for part in parts)
        unused = -total % LANES
        outputs = parts[0].site.outputs
        joined, shares = torch.zeros(total + unused, outputs), torch.zeros(outputs)
        at = 0
        for site, down, up, share in parts:
            own = slice(site.start, site.start + site.size)
            joined[at : at + down.shape[0], own] = up.t()
            if share is not None:
                shares[own] = share
            at += down.shape[0]
        downs = F.pad(torch.cat([part.down for part in parts]).t(), (0, unused)).contiguous()
        low_rank = LowRank(
            downs.to(self._device, self._dtype), joined.to(self._device, self._dtype)
        )
        if parts[0].share is None:
            return low_rank
        magnitude = Magnitude(shares.to(self._device), self._bias(parts[0].site))
        return replace(low_rank, magnitude=magnitude)

    def unload(self, slot: int) -> None:
        """Forgets an adapter."""
        self._adapters.pop(slot, None)

    def get(self, slot: int) -> Adapter:
        """The adapter of a slot. Raises `BadBatch` if there is none."""
        found = self._adapters.get(slot)
        if found is None:
            raise BadBatch(f"forward: there is no adapter {slot}")
        return found

    def rows(self, slots: Int32, outputs: Int32 | None = None) -> AdapterRows | None:
        """Rows `[t]` of a batch by the slots of their adapters, -1 for none; `outputs` are its
        outputs' rows. Raises `BadBatch` for a slot without adapter.
        """
        used = np.unique(slots[slots >= 0]).tolist()
        if not used:
            return None
        own = {slot: self.get(slot) for slot in used}
        return AdapterRows(slots, own, self._device, outputs)
