"""What is done on a GPU before a model serves: trying how much memory computing takes, recording graphs."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import structlog
import torch
from rich.console import Console
from rich.progress import track

from pie_inference.attention.flashinfer import FlashInferAttention
from pie_inference.calibration.trial import run_trial
from pie_inference.cuda.decode_graphs import DecodeGraphs, GraphCapture, ladder
from pie_inference.device.current import current
from pie_inference.memory.embeds import EmbedPool
from pie_inference.models.base import Model
from pie_inference.served_model import ServedModel

log = structlog.get_logger("pie.worker")

GRAPH_BYTES = 8 << 20  # set aside for each further graph: the first one is measured
SPARE_BYTES = 256 << 20  # for what only some batches need


def record(
    network: Model, embeds: EmbedPool, attention: FlashInferAttention, sizes: Sequence[int]
) -> DecodeGraphs:
    """Records decoding steps of such batch sizes, with a progress bar if someone looks."""

    def shown(sizes: Sequence[int]) -> Iterable[int]:
        if len(sizes) == 1 or not sys.stderr.isatty():
            return sizes
        return track(sizes, "recording decoding steps", console=Console(stderr=True))

    device = attention.device
    torch.cuda.synchronize(device)
    free, start = torch.cuda.mem_get_info(device)[0], time.perf_counter()
    with current(device):
        graphs = DecodeGraphs(network, embeds, attention, sizes, GraphCapture.on(device), shown)
    torch.cuda.synchronize(device)
    taken = free - torch.cuda.mem_get_info(device)[0]
    log.info(
        "decoding steps recorded",
        sizes=len(sizes),
        largest=max(sizes),
        megabytes=taken >> 20,
        seconds=round(time.perf_counter() - start, 1),
    )
    return graphs


def working_memory(device: torch.device, assemble: Callable[[], tuple[ServedModel, int]]) -> int:
    """Bytes that a model takes beside weights and pools: it runs its largest batches, with small pools.

    Args:
        device: a GPU.
        assemble: makes the model, and tells the bytes of its pools.
    """
    _clean(device)
    free = torch.cuda.mem_get_info(device)[0]
    model, pools = assemble()
    description = model.description
    inputs = min(description.max_batch_tokens, description.max_position, model.embeds.size)
    rows = min(description.max_batch_commands, inputs)
    with torch.inference_mode():
        for lengths in ([inputs], [1] * rows):
            run_trial(model, lengths)
    torch.cuda.synchronize(device)
    taken = free - torch.cuda.mem_get_info(device)[0] - pools
    further = 0 if model.graphs is None else len(ladder(model.graphs.sizes[-1])) * GRAPH_BYTES
    del model
    _clean(device)
    log.info("memory that computing takes", megabytes=taken >> 20)
    return max(0, taken) + further + SPARE_BYTES


def _clean(device: torch.device) -> None:
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
