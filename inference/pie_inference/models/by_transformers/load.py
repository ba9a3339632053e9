"""Makes transformers' module of a checkpoint, with weights that our reader reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import structlog
import torch

from pie_inference.checkpoints.fields import check_loops
from pie_inference.checkpoints.loader import checked_number, stored_tensors
from pie_inference.checkpoints.quantized import dequantized
from pie_inference.checkpoints.sources import Source
from pie_inference.errors import LoadError
from pie_inference.models.by_transformers.interface import register
from pie_inference.models.by_transformers.network import ByTransformers
from pie_inference.models.by_transformers.products import Kept
from pie_inference.models.spec import LONGEST, Config

log = structlog.get_logger("pie.worker.load")

LEAST = 5, 24  # of transformers, whose interfaces these are
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "n_ctx",
)
UNTOLD = 2048  # positions, where a configuration says none: they have no table then


def transformers() -> ModuleType | None:
    """The library, if there is one that is new enough."""
    try:
        import transformers as found
    except ImportError:
        return None
    version = tuple(int(part) for part in found.__version__.split(".")[:2] if part.isdigit())
    return found if version >= LEAST else None


def class_of(name: str) -> Any | None:
    """The class of that name that makes texts, if it is one of transformers' and can be had."""
    if (library := transformers()) is None:
        return None
    return getattr(library, name) if name in class_names() else None


def class_names() -> set[str]:
    """Names of the classes that make texts, of text alone or of images too."""
    from transformers.models.auto import modeling_auto as auto

    texts = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return {name for names in texts for name in names.values() if isinstance(name, str)}


def load(
    name: str,
    checkpoint: Config,
    folder: Path | None,
    dtype: torch.dtype,
    device: torch.device,
    quantize: str | None = None,
) -> ByTransformers:
    """The network of a checkpoint, or with random weights, by transformers' class of that name.
    Raises `LoadError` if the checkpoint is not what it expects, or the class cannot be served.
    """
    kind = class_of(name)
    assert kind is not None  # the registry has looked
    kept = None
    if folder is not None and device.type == "cpu":
        with torch.device("meta"):
            empty = kind._from_config(_config(kind, checkpoint), attn_implementation="eager")
            kept = Kept(empty)
    with ExitStack() as opened:
        module = module_of(kind, checkpoint, folder, dtype, device, opened, kept=kept)
    text = module.config.get_text_config(decoder=True)
    with torch.inference_mode():
        try:
            if kept is not None:
                kept.give(module)
            positions = positions_of(text, checkpoint)
            made = ByTransformers(module, positions, dtype, folder)
        except Exception as error:
            raise LoadError(_refusal(kind, text, error)) from error
        made.use_products(quantize)
        bits = {packed.bits for packed in kept.packed.values()} if kept else set()
        made.few_bits = sorted({*made.few_bits, *bits})
    if made.no_images:
        log.warning("a model reads text alone", model=name, why=made.no_images)
    return made


def check(name: str, checkpoint: Config, folder: Path) -> None:
    """Raises `LoadError` if a class expects other tensors than a checkpoint has, by their heads."""
    with ExitStack() as opened:
        module_of(class_of(name), checkpoint, folder, torch.float32, torch.device("meta"), opened)


def module_of(
    kind: Any,
    checkpoint: Config,
    folder: Path | None,
    dtype: torch.dtype,
    device: torch.device,
    opened: ExitStack,
    *,
    attention: str | None = "eager",
    unused: tuple[str, ...] | None = None,
    kept: Kept | None = None,
) -> Any:
    """A class's module with a checkpoint's weights, or random ones without a folder; of weights
    that are kept elsewhere, with placeholders. Raises `LoadError` if the checkpoint lacks tensors,
    but for those that are named so, or has others, unless some are `unused`.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    register()
    made = {"config": _config(kind, checkpoint), "dtype": dtype, "attn_implementation": attention}
    if folder is None:
        torch.manual_seed(0)
        return kind._from_config(made.pop("config"), **made).to(device).eval()
    sources = dequantized(checkpoint, stored_tensors(folder, dtype, opened))
    meta = device.type == "meta"

    def read(name: str, source: Source) -> torch.Tensor:
        if meta:
            return torch.empty(source.shape, dtype=dtype, device="meta")
        if kept is not None and (held := kept.placeholder(name, source, dtype)) is not None:
            return held
        return checked_number(folder, name, source, dtype)

    # One after another: a file cannot be closed, as after an error, while a thread reads it.
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    module, said = kind.from_pretrained(
        None,
        state_dict={name: _Lazy(name, source, dtype, read) for name, source in sources.items()},
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused below
        **made,
        **({"device_map": "meta"} if meta else {}),
    )
    surplus = said["unexpected_keys"] if unused is None else ()
    missing = [key for key in said["missing_keys"] if not key.startswith(unused or ())]
    for wrong, names in (
        ("tensors that disagree with config.json", said["mismatched_keys"]),
        ("the checkpoint lacks tensors", missing),
        ("tensors that the architecture does not have", surplus),
        ("tensors that cannot be arranged", said["error_msgs"]),
    ):
        if names:
            raise LoadError(f"{folder}: {wrong}: {', '.join(sorted(map(str, names))[:5])}")
    return module if meta else module.to(device)


def _config(kind: Any, checkpoint: Config) -> Any:
    """The configuration of a class; its code is transformers' alone."""
    if "auto_map" in checkpoint:
        raise LoadError(
            "config.json: 'auto_map' names code of its own, which is never run; to serve it by"
            f" transformers' {kind.__name__}, take that entry out"
        )
    check_loops(checkpoint)
    left_out = ("quantization_config", LONGEST)
    plain = {name: _number(value) for name, value in checkpoint.items() if name not in left_out}
    return kind.config_class.from_dict(plain)


def _number(value: Any) -> Any:
    """A value as it was before transformers wrote it: numbers that JSON has not are tables."""
    if isinstance(value, dict):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {name: _number(each) for name, each in value.items()}
    return [_number(each) for each in value] if isinstance(value, list) else value


def positions_of(text: Any, checkpoint: Config) -> int:
    """How many positions to serve. Ropes whose frequencies follow the longest text of a forward are
    served as far as they do not.
    """
    told: list[Any] = [getattr(text, name, None) for name in POSITIONS]
    found = next((int(n) for n in told if n), UNTOLD)
    limits = [found]
    for rope in _ropes(getattr(text, "rope_parameters", None) or {}):
        if rope.get("rope_type") in ("longrope", "dynamic"):
            name = "original_max_position_embeddings"
            limits.append(int(rope.get(name) or getattr(text, name, None) or found))
    longest = checkpoint.get(LONGEST)
    return min(limits if longest is None or longest > min(limits) else [longest])


def _ropes(parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    inner = [value for value in parameters.values() if isinstance(value, Mapping)]
    return inner or [parameters]


def _refusal(kind: Any, text: Any, error: Exception) -> str:
    why = str(error)
    if not isinstance(error, LoadError):
        why = f"its code fails without its own attention and cache ({type(error).__name__}: {why})"
    kinds = {str(kind) for kind in getattr(text, "layer_types", None) or ()}
    odd = sorted(kinds - {"full_attention", "sliding_attention", "chunked_attention"})
    hint = f" (it has layers of {', '.join(odd)})" if odd else ""
    return (
        f"{kind.__name__} by transformers: {why}{hint}; no setting changes that: take a model of"
        " another architecture, docs/models.md names those that run"
    )


class _Lazy:
    """A tensor that transformers reads when it wants it."""

    def __init__(
        self,
        name: str,
        source: Source,
        dtype: torch.dtype,
        read: Callable[[str, Source], torch.Tensor],
    ) -> None:
        self.shape, self.dtype = torch.Size(source.shape), dtype
        self._name, self._source, self._read = name, source, read

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def __getitem__(self, _: Any) -> torch.Tensor:
        return self._read(self._name, self._source)
