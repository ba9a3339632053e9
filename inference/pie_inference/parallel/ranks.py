"""The processes that compute one model together, each with a part of every layer."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]

from pie_inference.errors import LoadError
from pie_inference.layers.feed_forward import FeedForward
from pie_inference.layers.kernels import Kernels
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows

PATIENCE = timedelta(minutes=10)  # for another rank: loading takes minutes


class Meeting:
    """A file of the machine that all are on, `file://PATH`, or a port of the first one's."""

    def __init__(self, place: str) -> None:
        """The file does not exist yet; the port is one that the first rank has opened."""
        self.place = place
        self._opened: Store | None = None

    @classmethod
    def open(cls, address: str) -> Meeting:
        """Opens a free port at an address of this machine, and at no other."""
        listener = socket.create_server((address, 0))
        port = listener.getsockname()[1]
        meeting = cls(f"tcp://{address}:{port}")
        meeting._opened = TCPStore(
            address,
            port,
            is_master=True,
            timeout=PATIENCE,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return meeting

    def store(self, size: int) -> Store:
        """The address at which so many ranks find each other."""
        if self._opened is not None:
            return self._opened
        if self.place.startswith("file://"):
            return FileStore(self.place.removeprefix("file://"), size)
        address, _, port = self.place.removeprefix("tcp://").rpartition(":")
        return TCPStore(address, int(port), timeout=PATIENCE)


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the others. All of them call each method, in the same order."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those of this machine

    @classmethod
    def join(cls, rank: int, size: int, meeting: Meeting, on_cpu: bool, each: int) -> Ranks:
        """Waits until all have come to the meeting, of which there are `each` on each machine.
        Raises `LoadError` if the first one computes on another kind of device.
        """
        local_rank, device = rank % each, torch.device("cpu")
        if not on_cpu:
            device = torch.device("cuda", local_rank)
            torch.cuda.set_device(device)
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

    def use(self, kernels: Kernels) -> None:
        """See `FeedForward.use`."""
        self._part.use(kernels)

    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]`, the same on every rank."""
        return self._ranks.sum_(self._part(x, adapters).contiguous())
