"""What the simulated GPU must not let pass: a mistake of each kind is found, and the mended form is
not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from simulated_gpu import driver
from simulated_gpu.device import MEMORY
from simulated_gpu.order import Hazard


def ones(count: int = 8) -> torch.Tensor:
    return torch.ones(count, device="cuda")


def test_it_computes() -> None:
    x = ones()
    x[2:4] += 3
    x.index_copy_(0, torch.tensor([7]).to("cuda"), torch.tensor([9.0]).to("cuda"))
    assert x.device == torch.device("cuda:0")
    assert (x * 2).cpu().tolist() == [2, 2, 8, 8, 2, 2, 2, 18]
    with pytest.raises(TypeError):
        x.numpy()


def test_tensors_of_two_devices() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        ones() + torch.ones(8)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(8).index_select(0, torch.zeros(2, dtype=torch.int64, device="cuda"))
    assert (ones() * torch.tensor(2.0)).cpu().sum() == 16  # a number may come from anywhere


@pytest.mark.parametrize("mended", [False, True])
def test_a_stream_that_reads_what_another_writes(mended: bool) -> None:
    side: Any = driver.Stream()
    x = ones()
    if mended:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), _expected(Hazard, not mended):
        found = x + 1
    if mended:
        torch.cuda.current_stream().wait_stream(side)
        found.record_stream(torch.cuda.current_stream())
        assert found.sum().item() == 16


@pytest.mark.parametrize("mended", [False, True])
def test_the_host_reads_what_is_still_copied(mended: bool) -> None:
    host = torch.empty(8, pin_memory=True)
    host.copy_(ones(), non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    if mended:
        event.synchronize()
    with _expected(Hazard, not mended):
        assert host.numpy().sum() == 8


@pytest.mark.parametrize("mended", [False, True])
def test_the_host_writes_what_is_still_copied(mended: bool) -> None:
    host = torch.zeros(8).pin_memory()
    found = host.to("cuda", non_blocking=True)
    if mended:
        torch.cuda.synchronize()
    with _expected(Hazard, not mended):
        host.fill_(5.0)
    assert not mended or found.sum().item() == 0


def test_parts_of_pinned_memory_are_apart() -> None:
    host = torch.zeros(8).pin_memory()
    host[:4].to("cuda", non_blocking=True)
    host[4:].fill_(5.0)
    with pytest.raises(Hazard):
        host[3:5].fill_(5.0)


@pytest.mark.parametrize("mended", [False, True])
def test_memory_that_is_freed_while_another_stream_uses_it(mended: bool) -> None:
    side: Any = driver.Stream()
    x = ones()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
    if mended:
        x.record_stream(side)
    del x
    with _expected(Hazard, not mended):
        driver.device.check()


def test_copies_that_cannot_be_left_alone() -> None:
    with pytest.raises(RuntimeError, match="pageable"):
        torch.empty(8).copy_(ones(), non_blocking=True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.arange(8).to("cuda"),
    ],
)
def test_what_makes_the_host_wait(ask: Callable[[torch.Tensor], object]) -> None:
    x = ones()
    before = len(driver.device.asked)
    ask(x)
    assert len(driver.device.asked) == before + 1


def test_what_does_not() -> None:
    x = ones()
    index = torch.arange(8).pin_memory()
    before = len(driver.device.asked)
    x[index.to("cuda", non_blocking=True)].add_(1).masked_fill(x > 0, 2.0).sort()
    x.topk(3).values.cumsum(0).clone()
    assert len(driver.device.asked) == before


class Recorded:
    """A graph of `y = (x + 1) * 2`."""

    def __init__(self, x: torch.Tensor) -> None:
        self.graph = torch.cuda.CUDAGraph()
        stream: Any = driver.Stream()
        with torch.cuda.graph(self.graph, stream=stream):
            self.y = (x + 1) * 2


def test_a_graph_runs_again_on_the_same_memory() -> None:
    x = ones()
    graph = Recorded(x)
    for number in (1, 5):
        x.fill_(number)
        graph.graph.replay()
        assert graph.y.tolist() == [(number + 1) * 2] * 8


def test_a_graph_of_memory_that_is_freed() -> None:
    x = ones()
    graph = Recorded(x)
    del x
    with pytest.raises(Hazard, match="freed"):
        graph.graph.replay()


def test_waiting_while_a_graph_is_recorded() -> None:
    x = ones()
    stream: Any = driver.Stream()
    with (
        pytest.raises(RuntimeError, match="capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream),
    ):
        x.sum().item()


def test_times_before_they_are_there() -> None:
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    ones()
    second.record()
    with pytest.raises(RuntimeError, match="not ready"):
        first.elapsed_time(second)
    second.synchronize()
    assert first.elapsed_time(second) >= 0


def test_more_memory_than_there_is() -> None:
    free, total = torch.cuda.mem_get_info()
    assert total == MEMORY
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(free + 1, dtype=torch.uint8, device="cuda")
    held = ones(1 << 20)
    assert torch.cuda.mem_get_info()[0] == free - (4 << 20)
    del held
    assert torch.cuda.mem_get_info()[0] == free


def test_memory_holds_anything_before_it_is_written() -> None:
    assert torch.empty(4, device="cuda").isnan().all().item()


def _expected(error: type[Exception], raised: bool) -> AbstractContextManager[object]:
    return pytest.raises(error) if raised else nullcontext()
