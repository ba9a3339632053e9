"""Reads a checkpoint and builds its network, before there is any pool."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import structlog
import torch

from pie_inference.adapters import AdapterTable
from pie_inference.calibration.threads import one_thread
from pie_inference.checkpoints.gguf_families import own_words
from pie_inference.checkpoints.loader import (
    Part,
    checkpoint_folder,
    choose_dtype,
    load_tensors,
    random_tensors,
    read_config,
    whole,
)
from pie_inference.checkpoints.quantized import dequantized, quantization
from pie_inference.checkpoints.sources import Sources
from pie_inference.device import current
from pie_inference.errors import LoadError
from pie_inference.loading.choices import choose_device, flashinfer_for, stored_dtype
from pie_inference.models.by_transformers.load import load as load_general
from pie_inference.models.decoder import Decoder
from pie_inference.models.few_bits import keeper
from pie_inference.models.kept_weights import KeptWeights
from pie_inference.models.network import Network
from pie_inference.models.registry import (
    ARCHITECTURES,
    Architecture,
    Rename,
    architecture_of,
    with_head,
)
from pie_inference.models.sharding import part_of, sharded
from pie_inference.models.spec import LONGEST, DecoderSpec
from pie_inference.models.weights import Tensors
from pie_inference.parallel.ranks import Ranks
from pie_py.config.model import ModelConfig
from pie_py.config.printable import printable

log = structlog.get_logger("pie.worker.load")

SMALL = 1 << 28  # parameters that one thread loads in less than a second
MOST_SAID = 1500  # characters of why a model cannot be served
# Keys of config.json that hold for the whole model, even if its language model is only a part.
WHOLE = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "quantization_config")


@dataclass(frozen=True, slots=True)
class LoadedNetwork:
    """A model without pools. Its fields are what pools, attention and description are made from."""

    config: ModelConfig
    architecture: str
    facts: Mapping[str, Any]  # of its language model, from config.json
    folder: Path
    network: Network
    dtype: torch.dtype
    device: torch.device
    adapters: AdapterTable
    stored: torch.dtype  # of keys and values
    flashinfer: ModuleType | None  # the library, if it computes attention
    ranks: Ranks


@contextmanager
def naming(config: ModelConfig) -> Iterator[None]:
    """Puts the model's name in front of load errors, and makes lack of memory one of them."""
    name = config.name or config.source
    try:
        yield
    except LoadError as error:
        text = str(error)
        if config.source.endswith(".gguf"):
            text = own_words(text, config.source)
        raise LoadError(f"model {name}: {printable(text, MOST_SAID)}") from error.__cause__
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise LoadError(f"model {name}: not enough memory: {error}") from error
    except Exception as error:  # of a file that no check foresees: it is named all the same
        log.warning("a checkpoint cannot be read", source=config.source, exc_info=error)
        raise LoadError(f"model {name}: {damaged(config.source, error)}") from error


def damaged(source: str, error: Exception) -> str:
    """The message for a reader's error about a checkpoint, where no check has foreseen it."""
    said = printable(f"{type(error).__name__}: {error}", 500)
    return f"{source} is damaged, or not supported: {said}"


def load_network(config: ModelConfig, ranks: Ranks) -> LoadedNetwork:
    """Reads a model's weights, or this rank's part of them, and builds its network. Raises
    `LoadError` if the checkpoint, its adapters, or the configuration cannot be served.
    """
    device = choose_device(config.device, ranks)
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # convolutions in float32 keep its precision
    with current(device):
        return _load_on(device, config, ranks)


def _load_on(device: torch.device, config: ModelConfig, ranks: Ranks) -> LoadedNetwork:
    folder = checkpoint_folder(config.source)
    checkpoint = _limited(with_head(read_config(folder)), config.max_length)
    name = architecture_of(checkpoint)
    architecture = ARCHITECTURES.get(name)
    table = checkpoint.get("text_config")
    text = table if isinstance(table, dict) else checkpoint
    if architecture is not None:
        text = architecture.text(checkpoint)
    facts = {**text, **{k: v for k, v in checkpoint.items() if k in WHOLE}}
    dtype = choose_dtype(config.dtype, facts, device)
    network: Network
    if architecture is None:
        network = _general(name, checkpoint, config, folder, dtype, device, ranks)
    else:
        small = sum(map(math.prod, architecture.tensors(checkpoint).values())) <= SMALL
        with nullcontext() if config.deterministic or not small else one_thread():
            network = _network(architecture, checkpoint, config, folder, dtype, device, ranks)
    if config.max_length and config.max_length > network.shape.max_position:
        raise LoadError(
            f"max_length: {config.max_length} tokens, and the model serves"
            f" {network.shape.max_position} at most"
        )
    rename: Rename = str if architecture is None else architecture.rename(checkpoint)
    adapters = AdapterTable(network.sites, rename, dtype, device)
    for slot, source in enumerate(config.adapters.values()):
        adapters.load(slot, source.expanduser())
    stored = stored_dtype(config, dtype, device)
    if network.shape.recurrent is not None and stored != dtype:
        raise LoadError("kv_dtype: slots of layers with a state are in the model's dtype: auto")
    library = flashinfer_for(config, network.shape, dtype, device)
    if library is not None and architecture is not None:
        # Only here, for machines without a GPU do not load what is for GPUs.
        from pie_inference.cuda.kernels import flashinfer_kernels

        with torch.inference_mode():
            network.use(flashinfer_kernels(config.flashinfer, library))
    return LoadedNetwork(
        config, name, facts, folder, network, dtype, device, adapters, stored, library, ranks
    )


def _general(
    name: str,
    checkpoint: Mapping[str, Any],
    config: ModelConfig,
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks,
) -> Network:
    """A model by transformers' own code. Raises `LoadError` for what only families of ours have."""
    for wanted, what in (
        (ranks.size > 1, "tensor_parallel_size above 1"),
        (config.deterministic, "deterministic"),
        (config.quantize and device.type != "cpu", "quantize on a GPU"),
    ):
        if wanted:
            raise LoadError(f"{name} runs as transformers' module: not with {what}")
    source = None if config.load_format == "dummy" else folder
    return load_general(name, checkpoint, source, dtype, device, config.quantize)


def _limited(checkpoint: Mapping[str, Any], longest: int | None) -> Mapping[str, Any]:
    """A config.json that says how long the texts may be, of a model within another one too."""
    if longest is None:
        return checkpoint
    text = checkpoint.get("text_config")
    inner = {"text_config": {**text, LONGEST: longest}} if isinstance(text, dict) else {}
    return {**checkpoint, **inner, LONGEST: longest}


def _network(
    architecture: Architecture,
    checkpoint: Mapping[str, Any],
    config: ModelConfig,
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks,
) -> Decoder:
    """The network with its weights; of several ranks, this one's part. Raises `LoadError`, before
    the weights are read, if it cannot be divided, or its rows cannot be independent.
    """
    spec = architecture.decoder(checkpoint)
    if config.deterministic:
        spec = _fixed(spec, config, device, ranks)
    own = spec
    part: Part = whole
    if ranks.size > 1:
        if config.adapters:
            raise LoadError("tensor_parallel_size: models with adapters run on one device")
        # It is cut out of each tensor as it is read: a rank never holds the whole model.
        own, part = sharded(spec, ranks.size), part_of(spec, ranks)
    expected = architecture.tensors(checkpoint)
    if config.load_format == "dummy":
        tensors = random_tensors(expected, dtype, device, part)
    else:
        arrange = partial(arranged, architecture, checkpoint)
        found = Tensors()
        possible = ranks.size == 1 and device.type == "cpu"  # a part is cut out of plain weights
        kept = KeptWeights(folder, config.quantize) if possible else None
        if kept is not None:
            found.packed.update(kept.read())
        keep = keeper(found.packed, config.quantize, possible)
        found.update(load_tensors(folder, expected, dtype, device, arrange, part, keep))
        if kept is not None:
            kept.keep(found.packed)
        tensors = found
        if found.packed or quantization(checkpoint):
            log.info("weights in few bits", kept=len(found.packed), widened_or_plain=len(found))
    with torch.inference_mode():
        return Decoder(own, tensors, dtype, device, ranks)


def _fixed(
    spec: DecoderSpec, config: ModelConfig, device: torch.device, ranks: Ranks
) -> DecoderSpec:
    """The decoder whose rows do not depend on each other. Raises `LoadError` if it has parts for
    which there is no such way.
    """
    for there, what in (
        (device.type != "cpu", "a GPU: its kernels choose the order of sums by the batch"),
        (ranks.size > 1, "tensor_parallel_size above 1"),
        (bool(config.adapters), "adapters"),
        (spec.shape.recurrent is not None, "layers with a state"),
        (bool(spec.shape.latent), "attention to latents"),
    ):
        if there:
            raise LoadError(f"deterministic: not with {what}; leave it away")
    return replace(spec, fixed_rows=True)


def arranged(architecture: Architecture, checkpoint: Mapping[str, Any], stored: Sources) -> Sources:
    """The tensors of a checkpoint by the names, and in the form, that the architecture expects."""
    if "embed_tokens.weight" in stored:  # a decoder that was saved by itself
        stored = {
            name if name.startswith("lm_head") else f"model.{name}": source
            for name, source in stored.items()
        }
    rename = architecture.rename(checkpoint)
    renamed = ((rename(name), source) for name, source in dequantized(checkpoint, stored).items())
    return architecture.arrange(
        checkpoint, {name: source for name, source in renamed if name is not None}
    )
