"""The processes that compute one model together, each with a part of every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from pie_inference.errors import LoadError
from pie_inference.parallel.meeting import PATIENCE, Meeting


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the others. All of them call each method, in the same order."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those of this machine

    @classmethod
    def join(
        cls, rank: int, size: int, meeting: Meeting, device: torch.device, local_rank: int
    ) -> Ranks:
        """Waits until all have come.

        Args:
            rank: of this process.
            size: how many there are.
            meeting: where, the same for all.
            device: that this one computes on.
            local_rank: of this process, among those of its machine.

        Raises:
            LoadError: if the first one computes on another kind of device.
        """
        store = meeting.store(size)
        if rank == 0:
            store.set("device", device.type)
        elif (first := store.get("device").decode()) != device.type:
            raise LoadError(
                f"rank {rank} computes on {device.type}, the first one on {first}: machines of one"
                " node need GPUs, all or none; or set device to cpu"
            )
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=PATIENCE,
            device_id=device if device.type == "cuda" else None,
        )
        return cls(rank, size, local_rank)

    def sum_(self, parts: torch.Tensor) -> torch.Tensor:
        """The sum over all, in place and returned."""
        if self.size > 1:
            dist.all_reduce(parts)
        return parts

    def joined(self, part: torch.Tensor) -> torch.Tensor:
        """The parts `[n, m]` of all, side by side: `[n, size * m]`."""
        if self.size == 1:
            return part
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
        """What the first of them thinks: clocks differ, and all must go the same way."""
        if self.size == 1:
            return opinion
        found = torch.tensor([opinion], dtype=torch.int32, device=device)
        dist.broadcast(found, 0)
        return bool(found.item())


ALONE = Ranks()
