"""What a flood took comes back when it is over."""

from __future__ import annotations

import subprocess
import sys

FLOOD = """
from pathlib import Path
import resource
from pie_control.allocator import limit_arenas, trim

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

limit_arenas()
before = resident()
flood = [bytes(3000) for _ in range(100_000)]
high = resident() - before
kept = flood[::1000]  # so that no arena is free to its end
del flood
trim()
print(high, resident() - before)
"""


def test_memory_between_what_is_kept_goes_back_to_the_system() -> None:
    told = subprocess.run([sys.executable, "-c", FLOOD], stdout=subprocess.PIPE, check=True)
    high, low = map(int, told.stdout.split())
    assert high > 200
    assert low < high / 10
