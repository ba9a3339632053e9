"""What a flood took comes back when it is over."""

from __future__ import annotations

import subprocess
import sys

from support.rig import Rig

FLOOD = """
from pathlib import Path
import resource
from pie_control.allocator import set_up, trim

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

set_up()
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


BLOCKS = """
import resource
from pathlib import Path
from pie_control.allocator import set_up, trim

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

def pages_made():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

set_up()
before, large = resident(), 60 << 20
first = pages_made()
block = b"x" * large
del block
second = pages_made()
block = b"x" * large
del block
third = pages_made()
trim()
print(second - first, third - second, resident() - before)
"""


def test_large_blocks_are_made_of_the_same_pages_again() -> None:
    """A call with many bytes takes such blocks, and no guest runs while pages are made."""
    told = subprocess.run([sys.executable, "-c", BLOCKS], stdout=subprocess.PIPE, check=True)
    first, again, kept = map(int, told.stdout.split())
    assert first > 10_000
    assert again < first / 100
    assert kept < 10, "MB, after a trim"


def test_an_instance_that_has_ended_keeps_no_message_for_itself() -> None:
    """Only what its client has not read stays, and counts."""
    rig = Rig()
    instance = rig.launch()
    for _ in range(8):
        instance.blobs.put(bytes(1 << 20), 1 << 20)
        instance.texts.put("x" * 1000, 1000)
    instance.outbox.put("said", 4)
    rig.end(instance)
    assert len(instance.blobs) == len(instance.texts) == 0
    assert instance.outbox.pop() == "said"
