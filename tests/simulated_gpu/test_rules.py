"""What the simulated GPU must not let pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from simulated_gpu import driver


def ones() -> torch.Tensor:
    return torch.ones(8, device="cuda")


def test_it_computes_on_one_device() -> None:
    x = ones()
    x[2:4] += 3
    x.index_copy_(0, torch.tensor([7]).to("cuda"), torch.tensor([9.0]).to("cuda"))
    assert x.device == torch.device("cuda:0")
    assert (x * 2).cpu().tolist() == [2, 2, 8, 8, 2, 2, 2, 18]
    with pytest.raises(RuntimeError, match="same device"):
        ones() + torch.ones(8)
    with pytest.raises(RuntimeError, match="pageable"):
        torch.empty(8).copy_(x, non_blocking=True)
    assert torch.empty(4, device="cuda").isnan().all().item()


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
    x, index = ones(), torch.arange(8).pin_memory()
    before = len(driver.device.asked)
    x[index.to("cuda", non_blocking=True)].add_(1).masked_fill(x > 0, 2.0).sort()
    assert len(driver.device.asked) == before
    ask(x)
    assert len(driver.device.asked) == before + 1
    with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        ask(x)


def test_a_graph_runs_again_on_the_same_memory() -> None:
    x, graph = ones(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + 1) * 2
    for number in (1, 5):
        x.fill_(number)
        graph.replay()
        assert y.tolist() == [(number + 1) * 2] * 8
    del x
    with pytest.raises(AssertionError, match="freed"):
        graph.replay()


def test_more_memory_than_there_is() -> None:
    free, _ = torch.cuda.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(free + 1, dtype=torch.uint8, device="cuda")
    held = torch.ones(1 << 20, device="cuda")
    assert torch.cuda.mem_get_info()[0] == free - (4 << 20)
    del held
    assert torch.cuda.mem_get_info()[0] == free
