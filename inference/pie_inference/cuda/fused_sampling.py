"""Choosing tokens with two of Triton's kernels, in the place of dozens of PyTorch's operations."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from pie_inference.device import upload
from pie_inference.memory.embeds import EmbedPool
from pie_inference.models.network import Network
from pie_inference.sampling.choose import Parameters
from pie_inference.sampling.noise import starts
from pie_inference.sampling.pool import SamplerPool
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import Int32

log = structlog.get_logger("pie.worker")
_NONE = np.zeros(1, np.int32)


def fused_sampling_for(
    config: ModelConfig, network: Network, embeds: EmbedPool, samplers: SamplerPool
) -> FusedSampling | None:
    """Fused sampling for a model on a GPU, compiled; None if PyTorch's operations choose."""
    device = samplers.tokens.device
    if device.type != "cuda" or not config.fused_sampling:
        return None
    try:
        kernels = importlib.import_module("pie_inference.cuda.sampling_kernels")
    except ImportError as error:
        log.warning("sampling by PyTorch, which is slower", reason=f"{error}; install triton")
        return None
    fused = FusedSampling(kernels, samplers.tokens)
    logits = network.logits(embeds.hidden[:1])
    fused.compile(logits.fill_(-torch.inf))  # then no token is chosen
    return fused


class FusedSampling:
    """Chooses tokens on one device, as `sampling.choose` does; nothing waits for it."""

    def __init__(self, kernels: ModuleType, chosen: torch.Tensor) -> None:
        """Uses the module `sampling_kernels`, and the pool of chosen tokens, int64 `[samplers]`."""
        self._kernels = kernels
        self._chosen = chosen

    def compile(self, logits: torch.Tensor) -> None:
        """Compiles the kernels for logits `[1, vocabulary]`, or finds them compiled."""
        parameters = Parameters(
            *np.zeros((1, 1), np.float32),
            *np.zeros((1, 1), np.int64),
            *np.zeros((2, 1), np.float32),
            *np.zeros((1, 1), np.uint64),
            *np.zeros((1, 1), np.uint32),
        )
        table = self.table(parameters, _NONE, _NONE, _NONE - 1)
        self.choose(logits, table, np.zeros((0, 0), np.uint32))

    def table(
        self, parameters: Parameters, samplers: Int32, embeds: Int32, masked: Int32
    ) -> torch.Tensor:
        """The kernels' arguments for each row, on the device: int32 `[FIELDS, n]`. A row's logits
        are of an embed, and its mask is -1 without one.
        """
        k = self._kernels
        start = starts(parameters.seeds, parameters.steps).view(np.int32).reshape(-1, 2)
        with np.errstate(divide="ignore"):
            floor = np.log(parameters.min_p)
        rows = np.empty((k.FIELDS, samplers.size), np.int32)
        rows[k.START_LOW.value], rows[k.START_HIGH.value] = start.T
        rows[k.TEMPERATURE.value] = _bits(np.where(parameters.drawn, parameters.temperature, 0))
        rows[k.TOP_P.value] = _bits(parameters.top_p)
        rows[k.FLOOR.value] = _bits(floor)
        rows[k.TOP_K.value] = np.minimum(parameters.top_k, np.iinfo(np.int32).max)
        rows[k.SAMPLER.value] = samplers
        rows[k.MASK.value] = masked
        rows[k.EMBED.value] = embeds
        return upload(rows, self._chosen.device)

    def embeds_of(self, table: torch.Tensor) -> torch.Tensor:
        """The embeds that a table was given, int32 `[n]`."""
        return table[self._kernels.EMBED.value]

    def choose(
        self, logits: torch.Tensor, table: torch.Tensor, masks: NDArray[np.uint32]
    ) -> torch.Tensor:
        """Tokens, also put into the pool, and the bits of their log-probabilities: int32 `[2, n]`.

        Args:
            logits: of the model, `[n, vocabulary]`: log-probabilities are theirs, before masks.
            table: of the rows.
            masks: `[masks, words]`; bit `t % 32` of word `t // 32` allows token `t`.
        """
        k, (count, vocabulary), device = self._kernels, logits.shape, logits.device
        blocks = -(-vocabulary // k.RACE_BLOCK)
        numbers = torch.empty((k.NUMBERS, count, blocks), dtype=torch.float32, device=device)
        ids = torch.empty((k.IDS, count, blocks), dtype=torch.int32, device=device)
        out = torch.empty((2, count), dtype=torch.int32, device=device)
        bits = table  # any memory does: without masks the kernel does not read it
        if masks.size:
            bits = upload(np.ascontiguousarray(masks).view(np.int32), device)
        words = masks.shape[1]
        both = (logits.contiguous(), table, bits, numbers, ids)
        k.race[count, blocks](
            *both,
            count,
            words,
            VOCABULARY=vocabulary,
            BLOCK=k.RACE_BLOCK,
            num_warps=k.RACE_WARPS,
        )
        k.decide[count,](
            *both,
            self._chosen,
            out,
            count,
            words,
            blocks,
            VOCABULARY=vocabulary,
            BLOCKS=1 << (blocks - 1).bit_length(),
            BLOCK=k.DECIDE_BLOCK,
            num_warps=k.DECIDE_WARPS,
        )
        return out


def _bits(numbers: NDArray[np.floating]) -> Int32:
    return numbers.astype(np.float32).view(np.int32)
