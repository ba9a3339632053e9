"""A node of the simulation: prompts one after the other, a cache of blocks, a pool of tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from typing import NamedTuple, TypeAlias

from benchmarks.simulated_cluster.traces import BLOCK, Launch
from pie_cluster.directory.node import Life, Node
from pie_cluster.wire.messages import MOST_HINTS, About, Load, Report


@dataclass(frozen=True)
class Machine:
    """The speed and size of a simulated node: about an 8 B model on one GPU of a data centre."""

    prefill_rate: int = 15_000  # prompt tokens per second
    pool_tokens: int = 400_000
    most_instances: int = 900
    step_seconds: float = 0.012  # of one output token
    instance_seconds: float = 0.0002  # that each instance adds to a step


class Ready(NamedTuple):
    """A prompt that will have been computed."""

    at: float  # with its first token
    hits: int  # tokens that were cached
    tokens: int  # of the whole prompt


Waiting: TypeAlias = tuple[float, int, Launch, tuple[int, ...]]  # since when, key, launch, blocks


class SimulatedNode:
    """One node's time and memory.

    Prompts are computed in the order in which they come, each as fast as the machine is, so when
    one is ready is known as soon as it comes. Blocks are cached from then on, least recently used
    ones given up where instances need their room. An instance holds its prompt and all that it
    generates until its end, also those blocks that others share.
    """

    def __init__(self, name: str, machine: Machine) -> None:
        self.name = name
        self.machine = machine
        self.waiting: deque[Waiting] = deque()  # for room
        self._free_at = 0.0  # when all prompts so far are computed
        self._live = 0  # instances
        self._used = 0  # tokens of the pool
        self._integral = 0.0  # of used tokens over time
        self._since = 0.0
        self._blocks: dict[int, float] = {}  # when used; least recently first
        self._has_evicted = False
        self._last: dict[int, tuple[int, ...]] = {}  # blocks of each key's last launch
        self._changed: dict[int, int] = {}  # hints since the last report

    def has_room(self, tokens: int) -> bool:
        """True if an instance of so many tokens can begin; a node without instances takes all."""
        most = self.machine
        fits = self._used + tokens <= most.pool_tokens and self._live < most.most_instances
        return fits or not self._live

    def begin(self, key: int, launch: Launch, blocks: tuple[int, ...], now: float) -> Ready:
        """An instance begins with its prompt."""
        cached = BLOCK * sum(1 for _ in takewhile(self._blocks.__contains__, blocks))
        hits = min(cached, max(0, launch.prompt - 1))  # the last token is always computed
        self._live += 1
        self._hold(launch.prompt + launch.output, now)
        self._cache(key, blocks, now)
        return self._compute(launch.prompt - hits, now, hits)

    def turn(self, context: int, given: int, output: int, now: float) -> Ready:
        """An instance goes on with `given` tokens more; its `context` is still here."""
        self._hold(given + output, now)
        return self._compute(given, now, context)

    def end(self, tokens: int, now: float) -> None:
        """An instance ends, and with it what it held."""
        self._live -= 1
        self._hold(-tokens, now)

    def step(self) -> float:
        """Seconds that one output token takes now."""
        return self.machine.step_seconds + self._live * self.machine.instance_seconds

    def held(self, now: float) -> float:
        """Tokens held over time until now, in token seconds."""
        self._hold(0, now)
        return self._integral

    def join(self) -> Node:
        """As the directory's table has it at first."""
        most = self.machine
        sizes = most.most_instances, most.pool_tokens, most.prefill_rate
        return Node(Life(self.name, 1), About("simulated", "", "", *sizes), Load(), 0.0)

    def report(self, now: float) -> Report:
        """The changes since the report before."""
        queued = int(max(0.0, self._free_at - now) * self.machine.prefill_rate)
        queued += sum(launch.prompt for _, _, launch, _ in self.waiting)
        rested = int(1000 * (now - next(iter(self._blocks.values()), now)))
        rests = rested if self._has_evicted else None
        load = Load(self._live + len(self.waiting), queued, self._used, rests)
        told = list(self._changed.items())[:MOST_HINTS]
        for key, _ in told:
            del self._changed[key]
        return Report(self.name, 1, load, told)

    def _hold(self, tokens: int, now: float) -> None:
        self._integral += self._used * (now - self._since)
        self._since = now
        self._used += tokens

    def _compute(self, tokens: int, now: float, hits: int) -> Ready:
        self._free_at = max(now, self._free_at) + tokens / self.machine.prefill_rate
        return Ready(self._free_at + self.step(), hits, hits + tokens)

    def _cache(self, key: int, blocks: tuple[int, ...], now: float) -> None:
        """Keeps a prompt's blocks, and notes what the next launch of the key would find: what the
        last two have in common.
        """
        if not blocks:
            return
        for block in reversed(blocks):  # the first one is given up last
            self._blocks.pop(block, None)
            self._blocks[block] = now
        alike = map(eq, blocks, self._last.get(key, blocks))
        shared = sum(takewhile(bool, alike))
        self._last[key] = blocks
        self._changed[key] = shared * BLOCK
        room = max(0, self.machine.pool_tokens - self._used) // BLOCK
        while len(self._blocks) > room:
            del self._blocks[next(iter(self._blocks))]
            self._has_evicted = True
