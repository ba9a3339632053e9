"""Threads give way while other processes have their cores."""

from __future__ import annotations

import hashlib
import os
import threading

import pytest

from pie_inference.calibration.threads import LEAST_ALONE, MOST_ALONE, RunQueues, SharedCores


class World:
    """A clock, and what the threads have waited until now."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waited = 3.0
        self.cores = SharedCores(lambda _: self.waited, lambda: self.now)

    def forward(self, seconds: float, *, waiting: float, layers: int = 10) -> int:
        """Runs one that wants two threads; how many layers two have computed."""
        if self.cores.allowed(2) == 1:
            self.now += seconds
            return 0
        for layer in range(layers):
            self.now += seconds / layers
            self.waited += seconds / layers * waiting
            if self.cores.are_taken():
                return layer + 1
        return layers


def test_one_goes_on_alone_in_the_middle_of_a_long_forward() -> None:
    world = World()
    assert world.forward(0.2, waiting=0.9) == 3  # a window and what a layer has above it
    assert world.cores.allowed(2) == 1
    world.now += LEAST_ALONE
    assert world.cores.allowed(2) == 2


def test_short_bursts_of_others_between_forwards_do_not_count() -> None:
    world = World()
    for _ in range(100):
        assert world.forward(0.03, waiting=0.1) == 10
        world.now, world.waited = world.now + 0.01, world.waited + 0.01
    for _ in range(100):  # nor those at the beginning of each
        assert world.cores.allowed(2) == 2
        for waiting in (0.005, 0.0, 0.0, 0.0, 0.0, 0.0):
            world.now, world.waited = world.now + 0.005, world.waited + waiting
            assert not world.cores.are_taken()


def test_tries_become_rarer_while_they_fail_and_frequent_again_after_one_succeeds() -> None:
    world = World()
    alone = []
    for _ in range(4000):
        if world.forward(0.01, waiting=1.0) == 0:
            alone.append(world.now)
    assert len(alone) > 0.85 * 4000
    assert world.cores.allowed(2) == 1
    world.now += MOST_ALONE
    for _ in range(100):
        assert world.forward(0.01, waiting=0.0) == 10
    world.forward(0.2, waiting=1.0)
    world.now += LEAST_ALONE
    assert world.cores.allowed(2) == 2


def test_a_short_forward_does_not_look_and_one_thread_needs_not_to() -> None:
    world = World()
    assert world.forward(0.001, waiting=1.0) == 10
    world.cores = SharedCores(lambda _: pytest.fail("it looks"), lambda: world.now)
    assert world.cores.allowed(1) == 1


def test_what_linux_tells_grows_while_threads_wait() -> None:
    core, end, data = min(os.sched_getaffinity(0)), threading.Event(), bytes(1 << 20)

    def compute() -> None:
        os.sched_setaffinity(0, {core})  # of this thread
        while not end.is_set():
            hashlib.sha256(data)

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    queues = RunQueues()
    before = queues.waited(True)
    while queues.waited(False) <= before:
        hashlib.sha256(data)
    end.set()
    for thread in threads:
        thread.join()
    queues.waited(True)  # threads that have ended do not count, and are no error
    queues.close()
