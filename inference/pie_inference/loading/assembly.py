"""Puts models together: their networks first, then pools in the memory that those leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import structlog
import torch

from pie_inference.adapters.table import AdapterTable
from pie_inference.attention.base import AttentionBackend
from pie_inference.attention.flashinfer import FlashInferAttention
from pie_inference.attention.torch_backend import TorchAttention
from pie_inference.checkpoints.loader import (
    checkpoint_folder,
    choose_dtype,
    load_tensors,
    random_tensors,
    read_config,
    stop_tokens,
)
from pie_inference.cuda.compile import Wanted, compile_kernels
from pie_inference.cuda.decode_graphs import ladder
from pie_inference.cuda.fused_sampling import fused_sampling_for
from pie_inference.cuda.kernels import flashinfer_kernels
from pie_inference.device.current import current
from pie_inference.errors import LoadError
from pie_inference.loading.attention_choice import flashinfer_for, stored_dtype
from pie_inference.loading.gpu_setup import record, working_memory
from pie_inference.loading.sizing import (
    Memory,
    PoolSizes,
    cpu_memory,
    gpu_memory,
    host_pages,
    pool_sizes,
)
from pie_inference.memory.embeds import EmbedPool
from pie_inference.memory.host_pool import HostPool
from pie_inference.memory.kv_cache import KvCache
from pie_inference.models.base import Model
from pie_inference.models.decoder import Decoder
from pie_inference.models.registry import Architecture, architecture_of
from pie_inference.models.sharding import part_of, sharded
from pie_inference.models.spec import DecoderSpec
from pie_inference.parallel.ranks import ALONE, Ranks
from pie_inference.sampling.pool import SamplerPool
from pie_inference.served_model import ServedModel
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import ModelDescription

log = structlog.get_logger("pie.worker")

TRAITS = [
    "allocate",
    "forward",
    "adapter",
    "input-text",
    "tokenize",
    "output-text",
    "sample",
    "offload",
    "introspect",
]

# What ranks that compute a model together do not do: no one has all of a layer.
SHARED_TRAITS = [trait for trait in TRAITS if trait not in ("adapter", "introspect")]

# What a config.json says of the whole model, even if the language model is a part of it.
WHOLE = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id")


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model that has no pools yet."""

    config: ModelConfig
    facts: Mapping[str, Any]  # of its language model, from config.json
    folder: Path
    network: Model
    dtype: torch.dtype
    device: torch.device
    adapters: AdapterTable
    stored: torch.dtype  # of keys and values
    flashinfer: ModuleType | None  # if it computes attention
    ranks: Ranks


def load_models(configs: Sequence[ModelConfig], ranks: Ranks = ALONE) -> list[ServedModel]:
    """Loads checkpoints and makes their pools, each its own; those of one device share its memory.

    Raises:
        LoadError: if one of them cannot be served; the text names it.
    """
    loaded = []
    for config in configs:
        with _named(config):
            loaded.append(_load(config, ranks))
    for device in {model.device for model in loaded if model.flashinfer is not None}:
        here = [_wanted(m) for m in loaded if m.flashinfer is not None and m.device == device]
        compile_kernels(here, torch.cuda.get_device_capability(device))
    cpu = torch.device("cpu")
    on_cpu = sum(model.device == cpu for model in loaded)
    memories = {cpu: cpu_memory((on_cpu or len(loaded)) * ranks.size)}
    for device in {model.device for model in loaded} - {cpu}:
        memories[device] = _gpu_memory(device, [m for m in loaded if m.device == device])
    served = []
    for model in loaded:
        with _named(model.config), current(model.device):
            served.append(_with_pools(model, memories[model.device], memories[cpu]))
    return served


def load_model(config: ModelConfig) -> ServedModel:
    """As `load_models`, of one."""
    return load_models([config])[0]


@contextmanager
def _named(config: ModelConfig) -> Iterator[None]:
    """Names the model in errors."""
    name = config.name or config.source
    try:
        yield
    except LoadError as error:
        raise LoadError(f"model {name}: {error}") from error.__cause__
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise LoadError(f"model {name}: not enough memory: {error}") from error


def _load(config: ModelConfig, ranks: Ranks) -> _Loaded:
    device = choose_device(config.device, ranks)
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # float32 is what it says, in convolutions, too
    with current(device):
        return _load_on(device, config, ranks)


def _load_on(device: torch.device, config: ModelConfig, ranks: Ranks) -> _Loaded:
    folder = checkpoint_folder(config.source)
    checkpoint = read_config(folder)
    architecture = architecture_of(checkpoint)
    facts = {**architecture.text(checkpoint), **{k: v for k, v in checkpoint.items() if k in WHOLE}}
    dtype = choose_dtype(config.dtype, facts, device)
    expected = architecture.tensors(checkpoint)
    divided = None if ranks.size == 1 else _divided(architecture, checkpoint, config, ranks.size)
    part = (lambda name, tensor: tensor) if divided is None else part_of(divided, ranks)
    if config.load_format == "dummy":
        tensors = random_tensors(expected, dtype, device, part)
    else:
        rename = architecture.rename(checkpoint)
        tensors = load_tensors(folder, expected, dtype, device, rename, part)
    with torch.inference_mode():
        network: Model
        if divided is None:
            network = architecture.build(checkpoint, tensors, dtype, device, folder)
        else:
            network = Decoder(sharded(divided, ranks.size), tensors, dtype, device, ranks)
    adapters = AdapterTable(network.sites, architecture.rename(checkpoint), dtype, device)
    for slot, source in enumerate(config.adapters.values()):
        adapters.load(slot, source.expanduser())
    stored = stored_dtype(config, dtype, device)
    library = flashinfer_for(config, network.shape, dtype, device)
    if library is not None:
        with torch.inference_mode():
            network.use(flashinfer_kernels(config.flashinfer, library))
    return _Loaded(config, facts, folder, network, dtype, device, adapters, stored, library, ranks)


def _divided(
    architecture: Architecture, checkpoint: dict[str, Any], config: ModelConfig, size: int
) -> DecoderSpec:
    """The whole of what is divided among ranks.

    Raises:
        LoadError: if the model cannot be.
    """
    if architecture.decoder is None:
        raise LoadError("tensor_parallel_size: models that read images run on one device")
    if config.adapters:
        raise LoadError("tensor_parallel_size: models with adapters run on one device")
    spec = architecture.decoder(checkpoint)
    sharded(spec, size)  # may refuse, before the weights are read
    return spec


def _wanted(loaded: _Loaded) -> Wanted:
    """What kernels a model needs."""
    network, config = loaded.network, loaded.config.flashinfer
    return Wanted(config, network.shape, loaded.dtype, loaded.stored, network.activation)


def _gpu_memory(device: torch.device, sharing: Sequence[_Loaded]) -> Memory:
    """What pools of models may take of a GPU, after weights, and what computing takes: it is tried."""
    working = 0
    for model in sharing:
        if model.config.kv_pages is not None or model.config.kv_memory is not None:
            continue  # it has been told
        with _named(model.config), current(device):
            working += working_memory(device, partial(_trial, model))
    free, total = torch.cuda.mem_get_info(device)
    utilization = max(model.config.gpu_memory_utilization for model in sharing)
    return gpu_memory(free, total, utilization, working, len(sharing))


def _trial(loaded: _Loaded) -> tuple[ServedModel, int]:
    """A model with pools that suffice for one largest batch, and the bytes that those take."""
    config, shape = loaded.config, loaded.network.shape
    memory = Memory(1 << 62, 1 << 62, 1)
    smallest = config.model_copy(update={"kv_pages": 1, "embeds": config.max_batch_tokens})
    sizes = pool_sizes(smallest, shape, loaded.dtype, loaded.stored, memory)
    most = max(1, min(config.graph_batch, config.max_batch_commands))
    return _assembled(loaded, sizes, 0, [most]), memory.granted


def _with_pools(loaded: _Loaded, memory: Memory, host_memory: Memory) -> ServedModel:
    config, shape = loaded.config, loaded.network.shape
    sizes = pool_sizes(config, shape, loaded.dtype, loaded.stored, memory)
    hosts = host_pages(config, shape, loaded.stored, sizes.kv_pages, host_memory)
    pages, embeds, hosts = loaded.ranks.smallest(
        [sizes.kv_pages, sizes.embeds, hosts], loaded.device
    )
    sizes = PoolSizes(pages, embeds)
    most = max(1, min(config.graph_batch, config.max_batch_commands))
    served = _assembled(loaded, sizes, hosts, ladder(most))
    log.info(
        "model loaded",
        **{k: getattr(served.description, k) for k in ("name", "dtype", "kv_pages")},
    )
    return served


def _assembled(loaded: _Loaded, sizes: PoolSizes, hosts: int, steps: Sequence[int]) -> ServedModel:
    """A model with pools of such sizes, and graphs of decoding steps of such batch sizes."""
    config, shape = loaded.config, loaded.network.shape
    dtype, device = loaded.dtype, loaded.device
    with torch.inference_mode():
        cache = KvCache(
            layers=shape.layers,
            pages=sizes.kv_pages,
            page_size=config.page_size,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            scratch=config.max_batch_tokens,
            dtype=dtype,
            device=device,
            stored=loaded.stored,
        )
        embeds = EmbedPool(sizes.embeds, shape.hidden, dtype, device)
        samplers = SamplerPool(shape.vocab_size, device)
        fused_sampling = fused_sampling_for(config, loaded.network, embeds, samplers)
        host = HostPool(cache, hosts)
        attention: AttentionBackend
        graphs = None
        if loaded.flashinfer is None:
            attention = TorchAttention(cache, shape.heads, shape.attention)
        else:
            attention = FlashInferAttention(
                cache,
                shape.heads,
                shape.attention,
                config.flashinfer,
                loaded.flashinfer,
                max(steps) if config.cuda_graphs else 1,
            )
            if config.cuda_graphs and loaded.network.graphable:
                graphs = record(loaded.network, embeds, attention, steps)
    bos = loaded.facts.get("bos_token_id")
    images, alone = loaded.network.images, loaded.ranks.size == 1
    description = ModelDescription(
        name=config.name or Path(config.source).name,
        architecture=shape.architecture,
        folder=str(loaded.folder),
        page_size=config.page_size,
        kv_pages=sizes.kv_pages,
        embeds=sizes.embeds,
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden,
        max_position=shape.max_position,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_commands=config.max_batch_commands,
        stop_tokens=stop_tokens(loaded.folder, loaded.facts),
        bos_token=bos if isinstance(bos, int) else None,
        dtype=str(dtype).removeprefix("torch."),
        traits=[*TRAITS, "input-image"] if images else TRAITS if alone else SHARED_TRAITS,
        image_rule=asdict(images.rule) if images else None,
        samplers=samplers.size,
        count_rows=samplers.count_rows,
        host_pages=host.pages,
        layers=shape.layers,
        heads=shape.heads * loaded.ranks.size,
        adapters=list(config.adapters),
    )
    return ServedModel(
        description,
        loaded.network,
        cache,
        embeds,
        attention,
        device,
        samplers,
        host,
        loaded.adapters,
        graphs,
        fused_sampling,
        loaded.ranks,
    )


def choose_device(wanted: str, ranks: Ranks = ALONE) -> torch.device:
    """The device of a configuration's `device`, of a rank its own.

    Raises:
        LoadError: if there is no such device.
    """
    if ranks.size > 1 and wanted != "cpu" and torch.cuda.is_available():
        if wanted not in ("auto", "cuda"):
            raise LoadError(f"device {wanted!r}: with tensor_parallel_size it is cuda, cpu or auto")
        wanted = f"cuda:{ranks.rank}"
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
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
    if device.type == "cuda" and device.index is None:  # one device has one name
        device = torch.device("cuda", torch.cuda.current_device())
    return device
