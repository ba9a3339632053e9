"""A trace made by us, in Mooncake's format with our fields.

It is about what one node serves in two minutes: 20 users, some far more active than others, with
one to three programs each whose prompts begin alike, and instances that call tools and go on. No
part of it was observed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from benchmarks.simulated_cluster.traces import BLOCK

USERS = 20
LAUNCHES = 300
RATE = 2.4  # launches per second


def sample_lines(seed: int = 1) -> Iterator[str]:
    """The lines of the sample."""
    random = Random(seed)
    numbers = iter(range(1 << 30))
    programs: list[tuple[str, str, list[int]]] = []
    weights: list[float] = []
    for user in range(USERS):
        count = random.randint(1, 3)
        for program in range(count):
            shared = [next(numbers) for _ in range(random.randint(2, 16))]  # blocks
            programs.append((f"user-{user}", f"program-{program}", shared))
            weights.append(1 / (user + 1) / count)  # Zipf
    at = 0.0
    for _ in range(LAUNCHES):
        at += random.expovariate(RATE)
        user_name, program_name, shared = random.choices(programs, weights)[0]
        own = random.randint(20, 900)  # tokens
        blocks = [*shared, *(next(numbers) for _ in range(-(-own // BLOCK)))]
        line: dict[str, Any] = {
            "timestamp": int(at * 1000),
            "input_length": len(shared) * BLOCK + own,
            "output_length": random.randint(20, 200),
            "hash_ids": blocks,
            "user": user_name,
            "program": program_name,
            "turns": [
                [round(random.expovariate(1), 2), random.randint(20, 300), random.randint(20, 150)]
                for _ in range(random.randint(0, 4))
            ],
        }
        yield json.dumps(line, separators=(",", ":"))
