"""The processes that compute one model together, each with a part of every layer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from pie_inference.layers.feed_forward import FeedForward
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows

PATIENCE = timedelta(minutes=10)  # for another rank: loading takes minutes


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the others. All of them call each method, in the same order."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, rank: int, size: int, meeting: str, on_cpu: bool) -> Ranks:
        """Waits until all have come to the meeting: a file that does not exist before."""
        device = torch.device("cpu")
        if not on_cpu:
            device = torch.device("cuda", rank)
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=FileStore(meeting, size),
            rank=rank,
            world_size=size,
            timeout=PATIENCE,
            device_id=device if device.type == "cuda" else None,
        )
        return cls(rank, size)

    def sum_(self, parts: torch.Tensor) -> torch.Tensor:
        """The sum over all, in place and returned."""
        dist.all_reduce(parts)
        return parts

    def joined(self, part: torch.Tensor) -> torch.Tensor:
        """The parts `[n, m]` of all, side by side: `[n, size * m]`."""
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, 1)

    def smallest(self, numbers: list[int], device: torch.device) -> list[int]:
        """The smallest that any of them says, number by number."""
        if self.size == 1:
            return numbers
        found = torch.tensor(numbers, dtype=torch.int64, device=device)
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return [int(number) for number in found.tolist()]

    def agree(self, opinion: bool, device: torch.device) -> bool:
        """The decision of the first of them: clocks differ, and all must go the same way."""
        if self.size == 1:
            return opinion
        found = torch.tensor([opinion], dtype=torch.int32, device=device)
        dist.broadcast(found, 0)
        return bool(found.item())


ALONE = Ranks()


class SummedLinear(Linear):
    """A product of which each rank has some of the inputs."""

    def __init__(self, part: Linear, ranks: Ranks) -> None:
        """Takes this rank's part."""
        self._part = part
        self._ranks = ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`y` `[n, out]`, the same on every rank."""
        return self._ranks.sum_(self._part(x))


class SummedFeedForward(FeedForward):
    """A block of which each rank has a part of the inner size."""

    def __init__(self, part: FeedForward, ranks: Ranks) -> None:
        """Takes this rank's part."""
        self._part = part
        self._ranks = ranks

    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]`, the same on every rank."""
        return self._ranks.sum_(self._part(x, adapters).contiguous())
