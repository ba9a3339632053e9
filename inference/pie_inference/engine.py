"""Loads models and runs plans on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import structlog
import torch

from pie_inference import handlers
from pie_inference.attention.torch_backend import TorchAttention
from pie_inference.embeds import EmbedPool
from pie_inference.errors import BadBatch, LoadError
from pie_inference.kv_cache import KvCache
from pie_inference.loader import (
    checkpoint_folder,
    choose_dtype,
    load_tensors,
    read_config,
    stop_tokens,
)
from pie_inference.models.registry import architecture_of
from pie_inference.sampling.pool import SamplerPool
from pie_inference.served_model import ServedModel
from pie_inference.sizing import pool_sizes
from pie_py.config import ModelConfig
from pie_py.wire.plan import (
    Batch,
    BatchResult,
    CopyKv,
    EmbedSampled,
    EmbedText,
    FeedSampler,
    Forward,
    MaskKv,
    ModelDescription,
    NextDist,
    Plan,
    PlanResult,
    Sample,
    SetSampler,
)

log = structlog.get_logger("pie.worker")

TRAITS = ["allocate", "forward", "input-text", "tokenize", "output-text", "sample"]


class Engine:
    """The models of one worker."""

    def __init__(self, configs: Sequence[ModelConfig], cache_folder: Path) -> None:
        """Loads every model and sizes its pools.

        Raises:
            LoadError: if one of them cannot be served.
        """
        self._models: dict[str, ServedModel] = {}
        for i, config in enumerate(configs):
            try:
                model = load_model(config, cache_folder, len(configs) - i)
            except LoadError as error:
                raise LoadError(
                    f"model {config.name or config.source}: {error}"
                ) from error.__cause__
            except (MemoryError, torch.OutOfMemoryError) as error:
                raise LoadError(
                    f"model {config.name or config.source}: not enough memory: {error}"
                ) from error
            name = model.description.name
            if name in self._models:
                raise LoadError(f"two models are called {name!r}; give one of them another name")
            self._models[name] = model
            _warm_up(model)

    @property
    def descriptions(self) -> list[ModelDescription]:
        """What the control layer is told of the models."""
        return [model.description for model in self._models.values()]

    @property
    def device(self) -> str:
        """Devices that the models run on, as text."""
        return ", ".join(sorted({str(model.device) for model in self._models.values()}))

    def run(self, plan: Plan) -> PlanResult:
        """Runs the batches of a plan in order. One that fails does not keep the next from running."""
        model = self._models.get(plan.model)
        if model is None:
            error = f"this worker has no model {plan.model!r}"
            return PlanResult(plan.id, plan.model, [BatchResult(error) for _ in plan.batches])
        with torch.inference_mode():
            return PlanResult(plan.id, plan.model, [_run(model, b) for b in plan.batches])


def _run(model: ServedModel, batch: Batch) -> BatchResult:
    start = time.perf_counter_ns()
    try:
        result = _handle(model, batch)
    except BadBatch as error:
        return BatchResult(error=str(error), nanoseconds=time.perf_counter_ns() - start)
    except Exception as error:  # a batch must not end the worker, whatever is wrong with it
        log.exception("a batch failed", kind=batch.kind)
        text = f"{batch.kind}: {type(error).__name__}: {error}"
        return BatchResult(error=text, nanoseconds=time.perf_counter_ns() - start)
    result.nanoseconds = time.perf_counter_ns() - start
    return result


def _handle(model: ServedModel, batch: Batch) -> BatchResult:
    match batch:
        case EmbedText():
            handlers.embed_text(model, batch)
        case Forward():
            handlers.forward(model, batch)
        case CopyKv():
            handlers.copy_kv(model, batch)
        case MaskKv():
            handlers.mask_kv(model, batch)
        case NextDist():
            return BatchResult(distributions=handlers.next_dist(model, batch))
        case SetSampler():
            handlers.set_sampler(model, batch)
        case FeedSampler():
            handlers.feed_sampler(model, batch)
        case Sample():
            samples, refused = handlers.sample(model, batch)
            return BatchResult(samples=samples, refused=refused)
        case EmbedSampled():
            return BatchResult(refused=handlers.embed_sampled(model, batch))
    return BatchResult()


def load_model(config: ModelConfig, cache_folder: Path, models: int = 1) -> ServedModel:
    """Loads a checkpoint and makes its pools.

    Args:
        config: which, and how.
        cache_folder: where the embedded model may be made.
        models: how many models still to load share the memory that is free now.

    Raises:
        LoadError: if it cannot be served.
    """
    device = choose_device(config.device)
    folder = checkpoint_folder(config.source, cache_folder)
    checkpoint = read_config(folder)
    architecture = architecture_of(checkpoint)
    shape = architecture.shape(checkpoint)
    dtype = choose_dtype(config.dtype, checkpoint, device)
    tensors = load_tensors(folder, architecture.tensors(checkpoint), dtype, device)
    with torch.inference_mode():
        network = architecture.build(checkpoint, tensors, dtype, device)
        sizes = pool_sizes(config, shape, dtype, device, models)
        cache = KvCache(
            layers=shape.layers,
            pages=sizes.kv_pages,
            page_size=config.page_size,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            scratch=config.max_batch_tokens,
            dtype=dtype,
            device=device,
        )
        embeds = EmbedPool(sizes.embeds, shape.hidden, dtype, device)
        samplers = SamplerPool(shape.vocab_size, device)
    bos = checkpoint.get("bos_token_id")
    description = ModelDescription(
        name=config.name or Path(config.source).name,
        architecture=shape.architecture,
        folder=str(folder),
        page_size=config.page_size,
        kv_pages=sizes.kv_pages,
        embeds=sizes.embeds,
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden,
        max_position=shape.max_position,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_commands=config.max_batch_commands,
        stop_tokens=stop_tokens(folder, checkpoint),
        bos_token=bos if isinstance(bos, int) else None,
        dtype=str(dtype).removeprefix("torch."),
        traits=TRAITS,
        samplers=samplers.size,
        count_rows=samplers.count_rows,
    )
    log.info("model loaded", **{k: getattr(description, k) for k in ("name", "dtype", "kv_pages")})
    return ServedModel(
        description,
        network,
        cache,
        embeds,
        TorchAttention(cache, shape.heads, shape.attention),
        device,
        samplers,
    )


def choose_device(wanted: str) -> torch.device:
    """The device of a configuration's `device`.

    Raises:
        LoadError: if there is no such device.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise LoadError(f"device {wanted!r}: {error}") from None
    if device.type not in ("cpu", "cuda"):
        raise LoadError(f"device {wanted!r} is not supported; use cpu, cuda, cuda:N or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LoadError(
            f"there is no device {wanted!r}: {torch.cuda.device_count()} CUDA devices are visible"
        )
    return device


def _warm_up(model: ServedModel) -> None:
    """Runs a small prefill and decode, so that the first plan does not pay for lazy set-up.

    They write to scratch slots and to embeds that no one owns yet.
    """
    prompt, decode = min(32, model.embeds.size), min(8, model.embeds.size)
    with torch.inference_mode():
        for lengths in ([prompt], [1], [1] * decode):
            count = sum(lengths)
            ids = np.arange(count, dtype=np.int32)
            starts = np.cumsum([0, *lengths], dtype=np.int32)
            none = np.zeros(0, np.int32)
            nowhere = np.zeros(len(lengths) + 1, np.int32)
            positions = (ids - np.repeat(starts[:-1], lengths)).astype(np.int32)
            handlers.embed_text(model, EmbedText(np.zeros(count, np.int32), positions, ids))
            handlers.forward(
                model,
                Forward(
                    input_starts=starts,
                    inputs=ids,
                    page_starts=nowhere,
                    pages=none,
                    page_used=none,
                    has_masked=np.zeros(len(lengths), np.int32),
                    output_slots=np.full(count, -1, np.int32),
                    output_starts=starts,
                    outputs=ids,
                    mask_starts=nowhere,
                    mask=none,
                ),
            )
            k = np.full(count, min(256, model.network.shape.vocab_size), np.int32)
            handlers.next_dist(model, NextDist(ids, k))
