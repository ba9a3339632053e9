"""Records a model's decoding steps, and says how long it took and how much memory they take."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

import structlog
import torch
from rich.console import Console
from rich.progress import track

from pie_inference.attention.flashinfer import FlashInferAttention
from pie_inference.cuda.decode_graphs import DecodeGraphs, GraphCapture
from pie_inference.device.current import current
from pie_inference.memory.embeds import EmbedPool
from pie_inference.models.base import Model

log = structlog.get_logger("pie.worker")


def record(
    network: Model, embeds: EmbedPool, attention: FlashInferAttention, sizes: Sequence[int]
) -> DecodeGraphs:
    """Records decoding steps of such batch sizes, with a progress bar on a terminal."""

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
