"""Encoders from checkpoints: their modules by transformers, their weights by our reader."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import torch

from pie_inference.checkpoints.loader import choose_dtype
from pie_inference.checkpoints.quantized import quantization
from pie_inference.errors import LoadError
from pie_inference.handlers.base import ServedEncoder
from pie_inference.loading.choices import choose_device
from pie_inference.loading.pooling import Modules, made_to_embed, read, read_modules
from pie_inference.models.registry import ARCHITECTURES, with_head
from pie_inference.parallel.ranks import Ranks
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import ModelDescription

if TYPE_CHECKING:  # without an encoder nothing of transformers is loaded
    from pie_inference.models.encoder import Encoder

log = structlog.get_logger("pie.worker.load")

TRAITS = ["encode", "tokenize"]
HEAD = "ForSequenceClassification"
_ACTIVATIONS = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
_PROBLEMS = {"multi_label_classification": "sigmoid", "regression": "none"}


def encoder_of(checkpoint: Mapping[str, Any]) -> str | None:
    """The architecture of a config.json, if it is an encoder's: a model with a head for classes or
    scores, or one without any head that is no decoder of ours.
    """
    names = with_head(checkpoint).get("architectures")
    for name in names if isinstance(names, list) else []:
        if str(name).endswith(HEAD):
            return str(name)
        headless = str(name).endswith(("Model", "ForMaskedLM")) and "LMHead" not in str(name)
        if name not in ARCHITECTURES and headless:
            return str(name)
    return None


def load_encoder(
    config: ModelConfig, name: str, checkpoint: Mapping[str, Any], folder: Path, ranks: Ranks
) -> ServedEncoder:
    """Reads an encoder's weights and makes it ready. Raises `LoadError` if it cannot be served."""
    for wanted, what in (
        (ranks.size > 1, "tensor_parallel_size"),
        (bool(config.adapters), "adapters"),
        (config.quantize is not None, "quantize"),
        (config.deterministic, "deterministic"),
    ):
        if wanted:
            raise LoadError(f"{what}: not with an encoder ({name}); leave it away")
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, checkpoint, device)
    from_files = None if config.load_format == "dummy" else folder
    with torch.inference_mode():
        module = _module(name, checkpoint, from_files, dtype, device)
        from pie_inference.models.encoder import Encoder, Finish  # where transformers is there

        settings = module.config
        finish = Finish(*_finish(name, settings, read_modules(folder), checkpoint))
        window = getattr(settings.get_text_config(), "sliding_window", None) or 0
        encoder = Encoder(module, finish, window if window <= 512 else 0)
    said = _described(name, settings, config, folder, encoder)
    log.info("model loaded", name=said.name, dtype=said.dtype, by_rows=encoder.by_rows)
    return ServedEncoder(replace(said, quantized=quantization(checkpoint)), encoder, device)


def _described(
    name: str, settings: Any, config: ModelConfig, folder: Path, encoder: Encoder
) -> ModelDescription:
    text, longest = settings.get_text_config(), _longest(folder, settings, encoder.first)
    labels = [str(settings.id2label[at]) for at in range(settings.num_labels)]
    return ModelDescription(
        name=config.called,
        architecture=name,
        folder=str(folder),
        page_size=config.page_size,
        kv_pages=0,
        embeds=0,
        vocab_size=text.vocab_size,
        hidden_size=len(labels) if encoder.has_head else text.hidden_size,
        max_position=min(longest, config.max_length or longest),
        max_batch_tokens=config.max_batch_tokens,
        max_batch_commands=config.max_batch_commands,
        stop_tokens=[],
        bos_token=None,
        dtype=str(encoder.dtype).removeprefix("torch."),
        traits=TRAITS,
        samplers=0,
        count_rows=0,
        task="classify" if encoder.has_head else "embed" if made_to_embed(folder, {}) else "mask",
        labels=labels if encoder.has_head else [],
        prompts=_prompts(folder),
        pooling=None if encoder.has_head else encoder.finish.pooled,
        no_attend=f"{name} is an encoder",
        no_adapters=f"{name} is an encoder",
    )


def check_encoder(name: str, checkpoint: Mapping[str, Any], folder: Path) -> None:
    """Raises `LoadError` if an encoder cannot be served, by its files' heads."""
    module = _module(name, checkpoint, folder, torch.float32, torch.device("meta"))
    _finish(name, module.config, read_modules(folder), checkpoint)


def _module(
    name: str,
    checkpoint: Mapping[str, Any],
    folder: Path | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Any:
    """transformers' module; of a model without a head its base, whose pooler is not used: a vector
    is made as sentence-transformers makes it. What the base has not, as another head, is left out.
    """
    from pie_inference.models.by_transformers.load import module_of, transformers

    if (library := transformers()) is None:
        raise LoadError(f"{name} runs by transformers' code: `pip install 'pie-py[models]'`")
    if not name.endswith(HEAD):
        bases = library.models.auto.modeling_auto.MODEL_MAPPING_NAMES
        name = str(bases.get(str(checkpoint.get("model_type"))))
    kind = getattr(library, name, None)
    if kind is None:
        code = " (its own code, `auto_map`, is not run)" if "auto_map" in checkpoint else ""
        found = checkpoint.get("model_type")
        raise LoadError(f"config.json: transformers has no such model of the type {found!r}{code}")
    unused = () if name.endswith(HEAD) else ("pooler.",)
    with ExitStack() as opened:
        return module_of(
            *(kind, checkpoint, folder, dtype, device, opened), attention=None, unused=unused
        )


def _finish(
    name: str, settings: Any, modules: Modules, checkpoint: Mapping[str, Any]
) -> tuple[str, bool, str]:
    """How the hidden states are pooled, whether that is normalized, and a head's activation."""
    from pie_inference.models.encoder import POOLED

    if name.endswith(HEAD):
        own = checkpoint.get("sentence_transformers")
        named = own.get("activation_fn") if isinstance(own, dict) else None
        named = named or checkpoint.get("sbert_ce_default_activation_function")
        if named is not None:
            kind = str(named).rpartition(".")[2]
            if kind not in _ACTIVATIONS:
                raise LoadError(f"config.json: the activation {named!r} is not supported")
            return "last", False, _ACTIVATIONS[kind]
        usual = "sigmoid" if settings.num_labels == 1 else "softmax"
        return "last", False, _PROBLEMS.get(str(checkpoint.get("problem_type")), usual)
    if modules.others or modules.mode not in ("", *POOLED):
        what = ", ".join(modules.others) or f"pooling {modules.mode!r}"
        raise LoadError(f"modules.json: {what} is not supported ({', '.join(POOLED)} are)")
    if not modules.mode:
        log.warning("no sentence_transformers files: its vectors are means of hidden states")
    return POOLED[modules.mode or "mean"], modules.normalized, "none"


def _prompts(folder: Path) -> dict[str, str]:
    """Texts to put before others, by name; by an empty name what is put before all."""
    said = read(folder / "config_sentence_transformers.json", dict)
    listed, default = said.get("prompts"), said.get("default_prompt_name")
    found = {str(k): str(v) for k, v in listed.items()} if isinstance(listed, dict) else {}
    return {**found, "": found[default]} if default in found else found


def _longest(folder: Path, settings: Any, first: int) -> int:
    """Tokens of the longest text, by sentence-transformers' file or the model's positions."""
    most = getattr(settings.get_text_config(), "max_position_embeddings", None)
    most = most - first if isinstance(most, int) and most > first else 512
    said = read(folder / "sentence_bert_config.json", dict).get("max_seq_length")
    return min(most, said) if isinstance(said, int) and said > 0 else most
