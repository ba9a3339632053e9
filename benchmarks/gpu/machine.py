"""The ceilings of a machine: memory, matrix products, copies to and from the host."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.timing import seconds_of


def ceilings(device: torch.device, size: int = 8192, megabytes: int = 1024) -> dict[str, Any]:
    """Measured, on random numbers: on zeros products are faster than they will be.

    Returns:
        `memory`, `to_device`, `to_host` in bytes per second (memory counts what is read and
        written), and `matrix`, bf16 operations a second.
    """
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    matrix = 2 * size**3 / seconds_of(lambda: torch.mm(a, b, out=product), device)
    count = megabytes << 20
    source = torch.randint(0, 255, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    memory = 2 * count / seconds_of(lambda: target.copy_(source), device)
    host = torch.empty(count, dtype=torch.uint8, pin_memory=device.type == "cuda")
    to_host = count / seconds_of(lambda: host.copy_(source, non_blocking=True), device)
    to_device = count / seconds_of(lambda: target.copy_(host, non_blocking=True), device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "device": name,
        "torch": torch.__version__,
        "memory": memory,
        "matrix": matrix,
        "to_host": to_host,
        "to_device": to_device,
    }
