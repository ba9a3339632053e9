"""Adapters: LoRAs and DoRAs, as PEFT saves them, which each sequence may have, or not."""

from __future__ import annotations

import json
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

from pie_inference.device import Int64, upload_index
from pie_inference.errors import BadBatch, LoadError
from pie_inference.layers.grouped import LANES
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import (
    Adapter,
    AdapterRows,
    EmbeddingSite,
    LinearSite,
    LowRank,
    Magnitude,
    TokenRows,
)
from pie_py.models.checkpoint_files import BadFile, checkpoint_file, read_object
from pie_py.wire.adapter_file import CONFIG, CONFIG_FILE, TENSOR_FILE
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
    "modules_to_save",
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
INPUTS = 256  # of a layer that are looked at together
WHOLE = "weight"  # of a module that is replaced (`modules_to_save`), among an adapter's tensors
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
    replaced: tuple[str, ...] = ()  # `modules_to_save`

    def covers(self, module: str, *, whole: bool = False) -> bool:
        """True if `target_modules` names a module, or, as a `whole` one, `modules_to_save`."""
        if whole and any(module == r or module.endswith(f".{r}") for r in self.replaced):
            return True
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
            raise LoadError(f"adapter_config.json: {key} is not supported")
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
        replaced=tuple(map(str, config.get("modules_to_save") or ())),
    )


def _by_pattern(patterns: Mapping[str, float], module: str, default: float) -> float:
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(.+?)(?:\.lora_([AB](?=\.weight)|magnitude_vector)(?:\.weight)?"
    r"|\.lora_embedding_([AB])|(?:\.base_layer)?\.(weight))"
)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        if folder.is_file():  # an uploaded one, whose configuration was checked
            with safe_open(folder, framework="pt", device="cpu") as opened:
                return dict(json.loads(opened.metadata()[CONFIG]))
        value = read_object(folder, CONFIG_FILE)
    except BadFile as error:
        raise LoadError(str(error)) from None
    if value is None:
        raise LoadError(f"there is no {CONFIG_FILE}; name a folder that PEFT has saved")
    return value


def _read_pairs(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The matrices `A` `[r, in]` and `B` `[out, r]` of each module, a DoRA's `magnitude_vector`
    `[out]`, and the `weight` `[out, in]` of one that is replaced.
    """
    try:
        file = folder if folder.is_file() else checkpoint_file(folder, TENSOR_FILE)
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
                kind = match[2] or match[3] or match[4]
                pairs.setdefault(match[1], {})[kind] = opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{TENSOR_FILE} cannot be read: {error}") from None
    if not pairs:
        raise LoadError(f"{TENSOR_FILE} is empty")
    return pairs


def _named(kind: str) -> str:
    """The name of a tensor of a module."""
    return kind if kind == WHOLE else f"lora_{kind}.weight"


def _why_not(name: str) -> str:
    """The reason of what an adapter cannot change, by the name that it gives it."""
    what = "is not of a linear layer's weight, or the embedding's"
    if "embed" in name:
        what = "is of an embedding that is scaled, or on a GPU"
    return f"cannot be adapted: it {what}; linear layers can"


def _checked(
    module: str,
    pair: Mapping[str, torch.Tensor],
    inputs: int,
    outputs: int,
    rank: int,
    dora: bool,
) -> None:
    """Refuses tensors that do not fit a module. Raises `LoadError`."""
    if pair.keys() != {WHOLE} and not {"A", "B"} <= set(pair):
        raise LoadError(f"module {module} has one of lora_A and lora_B; it needs both")
    if dora != ("magnitude_vector" in pair) and "A" in pair:
        raise LoadError(
            f"module {module}: lora_magnitude_vector is there or lacks against `use_dora`"
        )
    shapes = {"A": (rank, inputs), "B": (outputs, rank), "magnitude_vector": (outputs,)}
    shapes[WHOLE] = (outputs, inputs)
    for name in pair:
        shape = shapes[name]
        found = tuple(pair[name].shape)
        if found != shape:
            raise LoadError(
                f"module {module}: {_named(name)} is {list(found)}, and the model and the rank want"
                f" {list(shape)}"
            )
        if not pair[name].is_floating_point():
            raise LoadError(f"module {module}: {_named(name)} holds {pair[name].dtype}")


def _share(magnitudes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The factors `[out]` with which a DoRA's changed weight `[out, in]` has these magnitudes."""
    share: torch.Tensor = magnitudes / torch.linalg.vector_norm(weight, dim=1)
    if not share.isfinite().all():
        raise LoadError("a magnitude is not finite: save the adapter again")
    return share


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
        sites: Mapping[str, LinearSite | EmbeddingSite],
        rename: Callable[[str], str | None],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Takes the sites of a model, by the name of the module in its checkpoint, and what leads
        from the name of a tensor there to the one that the model uses.
        """
        self._sites = sites
        self.rename = rename
        self._dtype = dtype
        self._device = device
        self._adapters: dict[int, Adapter] = {}

    @property
    def depends(self) -> bool:
        """True if one of them was made of the model's weights."""
        return any(adapter.depends for adapter in self._adapters.values())

    def load(self, slot: int, folder: Path) -> None:
        """Reads an adapter, a folder or an uploaded file, into a slot. Raises `LoadError` naming it
        and what is wrong, not supported, or does not fit the model, or that there is no memory.
        """
        called = folder.name[:12] if folder.is_file() else folder
        try:
            with torch.inference_mode():
                self._adapters[slot] = self._read(folder)
        except LoadError as error:
            raise LoadError(f"adapter {called}: {error}") from None
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise LoadError(f"adapter {called}: not enough memory: {error}") from None

    def _read(self, folder: Path) -> Adapter:
        """The modules of one layer side by side: one product of each kind, as the layer has."""
        config = lora_config(_read_config(folder))
        layers: dict[Linear, list[_Part]] = {}
        embedding: list[TokenRows] = []
        depends = config.dora
        for module, pair in _read_pairs(folder).items():
            depends = depends or WHOLE in pair
            renamed = self.rename(f"{module}.weight")
            site = None if renamed is None else self._sites.get(renamed.removesuffix(".weight"))
            if site is None:
                raise LoadError(f"module {module} {_why_not(module)}")
            if not config.covers(module, whole=WHOLE in pair):
                raise LoadError(f"module {module} has tensors, but target_modules does not name it")
            rank, dora = config.rank_of(module), config.dora
            if isinstance(site, EmbeddingSite):
                # PEFT has its matrices as of a linear layer that reads one token's place.
                if WHOLE in pair:
                    pair[WHOLE] = pair[WHOLE].t()
                _checked(module, pair, site.tokens, site.hidden, rank, dora)
            else:
                _checked(module, pair, site.inputs, site.size, rank, dora)
            found = {name: tensor.float() for name, tensor in pair.items()}
            if "B" in found:
                found["B"] *= config.scale_of(module)
            for name, matrix in found.items():
                if name == "magnitude_vector":  # which is looked at by what is made of it
                    continue
                if not matrix.to(self._dtype).isfinite().all():
                    kind = str(self._dtype).removeprefix("torch.")
                    raise LoadError(
                        f"tensor {module}.{_named(name)}, with its scale, holds numbers that"
                        f" are not finite in {kind}: save the adapter again"
                    )
            if isinstance(site, EmbeddingSite):
                embedding += self._rows_of(site, found)
                continue
            layers.setdefault(site.linear, []).extend(self._parts_of(site, found))
        joined = {layer: self._joined(parts) for layer, parts in layers.items() if parts}
        return Adapter(joined, embedding, depends)

    def _parts_of(self, site: LinearSite, found: Mapping[str, torch.Tensor]) -> list[_Part]:
        changes = []
        if WHOLE in found and (more := found[WHOLE] - self._weight(site)).any():
            changes.append((torch.eye(site.inputs), more))  # whose first matrix changes nothing
        if "A" in found:
            changes.append((found["A"], found["B"]))
        if (magnitudes := found.get("magnitude_vector")) is None:
            return [_Part(site, *each) for each in changes]
        share = _share(magnitudes, self._weight(site) + sum(up @ down for down, up in changes))
        return [_Part(site, down, up * share[:, None], share - 1) for down, up in changes]

    def _rows_of(self, site: EmbeddingSite, found: Mapping[str, torch.Tensor]) -> list[TokenRows]:
        def placed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.t().contiguous().to(self._device, self._dtype)

        rows, magnitudes = [], found.get("magnitude_vector")
        if WHOLE in found or magnitudes is not None:
            own = site.embed(torch.arange(site.tokens, device=self._device)).t().float().cpu()
            whole = found.get(WHOLE, own)
            if magnitudes is not None:
                whole = whole + found["B"] @ found["A"]
                whole = whole * _share(magnitudes, whole)[:, None]
            rows += [TokenRows(placed(whole - own), None)] if (whole != own).any() else []
        if "A" in found and magnitudes is None:
            rows.append(TokenRows(placed(found["A"]), placed(found["B"])))
        return rows

    def _weight(self, site: LinearSite) -> torch.Tensor:
        """The weight `[size, in]` of a site: its layer is given one input at a time."""
        own = slice(site.start, site.start + site.size)
        bias = self._bias(site)[own].cpu()
        one = torch.eye(site.inputs, device=self._device, dtype=self._dtype)
        parts = (
            site.linear.widely(part)[:, own].float().cpu() for part in torch.split(one, INPUTS)
        )
        return (torch.cat([*parts]) - bias).t()

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
        if all(part.share is None for part in parts):
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

    def rows(self, slots: Int32, outputs: Int64 | None = None) -> AdapterRows | None:
        """Rows `[t]` of a batch by the slots of their adapters, -1 for none; `outputs` are its
        outputs' rows. Raises `BadBatch` for a slot without adapter.
        """
        if slots.max(initial=-1) < 0:
            return None
        own = {slot: self.get(slot) for slot in np.unique(slots[slots >= 0]).tolist()}
        return AdapterRows(slots, own, self._device, outputs)

    def embed_(self, hidden: torch.Tensor, tokens: Int32, slots: Int32) -> None:
        """Adds to the embeddings `[t, hidden]` of tokens `[t]`, -1 for what is of no token, what
        the adapters `[t]`, -1 for none, say. Raises `BadBatch` for a slot without adapter.
        """
        for slot in np.unique(slots[slots >= 0]).tolist():
            if not (adapter := self.get(slot)).embedding:
                continue
            rows = np.flatnonzero((slots == slot) & (tokens >= 0))
            index = upload_index(rows, self._device)
            found = hidden.index_select(0, index)
            adapter.embed_(found, upload_index(tokens[rows], self._device))
            hidden.index_copy_(0, index, found)
