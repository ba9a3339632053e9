"""A model's pause, while a plan is at the worker."""

from __future__ import annotations

import trio
import trio.testing
from support.scheduler_fixtures import Guest, Server


def test_a_pause_that_is_over_before_its_last_step_waits_no_more() -> None:
    async def main() -> None:
        server = Server()
        guest, weights = Guest(server), server.parts.weights
        guest.embed([1], 0, guest.embeds(1))
        assert server.send()
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: weights.pause(server.facts.name, keep=True))
                await trio.testing.wait_all_tasks_blocked()
                weights.resume(server.facts.name)  # by another operator; other plans follow
        server.drain()

    trio.run(main)
