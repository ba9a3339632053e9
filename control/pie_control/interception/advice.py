"""Advises a program on what to do with its pages while it waits for a tool.

The program may discard, because it can recompute its tokens, and it knows which tool it waits for.
The policies, the history of waits and the transfer budget are those of the server.

The budget is for a step, so the programs that ask within the same step are decided about together:
it goes where the policy wants it, not to the first that asks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pie_control.errors import first_fault, invalid, unsupported
from pie_control.interception.policy import POLICIES, SOONEST_SECONDS
from pie_control.interception.waste import Choice, Load, Paused

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance
    from pie_control.interception.costs import Costs
    from pie_control.interception.policy import Policy
    from pie_control.interception.policy_input import PolicyInput

DEMAND_SECONDS = 1.0  # after which one that could discard looks whether others need its memory
MAX_TOOL = 256  # characters of a tool's name
MAX_WAIT = 4096  # characters of the JSON: each field that is wrong costs an error


class Wait(BaseModel):
    """A wait, as its program describes it."""

    model_config = ConfigDict(extra="forbid")

    tool: str = Field(default="", max_length=MAX_TOOL)
    policy: str = ""  # the operator's, if it is empty
    elapsed_ns: int = Field(default=0, ge=0, lt=1 << 63)  # that it has lasted so far
    expected_ns: int | None = Field(default=None, ge=0, lt=1 << 63)  # in all, if the program knows
    can_discard: bool = True  # whether the program knows all tokens

    @classmethod
    def parse(cls, text: str) -> Wait:
        """Reads it from JSON. Raises ApiError `invalid-argument`."""
        if len(text) > MAX_WAIT:
            raise invalid(f"wait: {len(text)} characters of JSON; {MAX_WAIT} at most")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise invalid(f"wait: {first_fault(error)}") from None


class Advice(BaseModel):
    """The answer to a program."""

    choice: str  # preserve, discard or swap
    pages: int  # how many of those asked about to swap out now; the others when it asks again
    seconds: float  # after which to ask again
    remaining: float  # seconds that the wait is expected to last
    chunk: int  # tokens to compute at once after a discard, so that others are not slowed
    restore: float  # seconds, about, until the context is back after this choice


@dataclass(frozen=True, slots=True)
class _Asked:
    """A context that still has pages, and whose program asks again."""

    paused: Paused
    policy: Policy
    asked: float  # trio's time
    again: float  # when the program asks again, at the latest

    def at(self, now: float) -> Paused:
        """The input of a policy about it at a later time."""
        passed, paused = now - self.asked, self.paused
        left, half = max(0.0, paused.remaining - passed), max(0.0, paused.half - passed)
        return replace(paused, remaining=left, half=half)


class SwapAdvice:
    """Advice for the programs that use one model."""

    def __init__(self, policy_input: PolicyInput) -> None:
        self._service = policy_input.model
        self._input = policy_input
        self._budget, self._inward = policy_input.outward, policy_input.inward
        self._asked: dict[tuple[Instance, int], _Asked] = {}  # by instance and queue
        policy_input.offered = self._offered

    def advise(self, instance: Instance, queue: int, pages: int, tokens: int, wait: Wait) -> Advice:
        """Advises what to do with pages of a queue's context that hold tokens.

        Raises:
            ApiError: `unsupported` if the worker has not measured its costs, `invalid-argument`.
        """
        costs = self._input.costs
        if costs is None:
            name = self._service.description.name
            raise unsupported(f"the worker of model {name!r} has not measured its costs")
        policy = self._input.policy if not wait.policy else POLICIES.get(wait.policy)
        if policy is None:
            known = ", ".join(POLICIES)
            raise invalid(f"no policy {wait.policy!r}; known: {known}")
        now, key = self._input.now(), (instance, queue)
        self._asked.pop(key, None)
        remaining, half = self._remaining(instance, wait)
        paused = Paused(instance.number, tokens, remaining, wait.can_discard, half)
        load = self._input.load(self._budget.left, self._budget.rate, without=instance)
        if pages:
            choice = policy([paused, *self._others(policy, now)], load, costs)[0]
        else:
            choice = Choice.PRESERVE
        moved = 0
        if choice is Choice.SWAP:
            room = self._service.host_pages.free
            # Where no step hides a page, one that is swapped all the same goes at once.
            moved = min(pages, room, self._budget.left if load.swap_rate else room)
            self._budget.spend(moved)
        left = replace(paused, tokens=tokens * (pages - moved) // max(1, pages))
        seconds = max(SOONEST_SECONDS, self._budget.step_seconds(), self._next(left, load))
        pool = self._service.pages
        if choice is Choice.PRESERVE and wait.can_discard and 2 * pool.free < pool.size:
            seconds = min(seconds, DEMAND_SECONDS)
        if choice is not Choice.DISCARD and moved < pages:
            self._asked[key] = _Asked(left, policy, now, now + seconds)
        return Advice(
            choice=choice.value,
            pages=moved,
            seconds=seconds,
            remaining=remaining,
            chunk=costs.chunk(load.sequences),
            restore=self._restore_seconds(choice, tokens, load, costs),
        )

    def drop_instance(self, instance: Instance) -> None:
        """It has ended, and asks no more."""
        for key in [key for key in self._asked if key[0] is instance]:
            del self._asked[key]

    def _offered(self) -> int:
        """Pages of contexts that it may advise to discard when their programs ask next."""
        now, page_size = self._input.now(), self._service.pages.page_size
        return sum(
            asked.paused.tokens // page_size
            for asked in self._asked.values()
            if asked.paused.can_discard
            and asked.policy is POLICIES["min-waste"]  # no other one looks at what is wanted
            and now <= asked.again <= now + DEMAND_SECONDS
        )

    def _others(self, policy: Policy, now: float) -> list[Paused]:
        """The other contexts asked about within this step, for which the same policy decides.

        One whose program has not asked in time waits no more.
        """
        step = self._budget.step_seconds()
        for key, asked in list(self._asked.items()):
            if asked.again + max(step, SOONEST_SECONDS) < now:
                del self._asked[key]
        return [
            asked.at(now)
            for asked in self._asked.values()
            if asked.policy is policy and asked.again <= now + step
        ]

    def _next(self, left: Paused, load: Load) -> float:
        """Seconds after which it may be worth to ask again: once half of such waits have ended, or
        a quarter of the time is over; sooner if what is left may only wait
        for a later step, but no sooner than those steps could move all that waits.
        """
        soon = min(left.remaining / 4, left.half)
        wanted = load.host_room and load.lacking + load.reserve > 0
        if not wanted or not load.swap_rate or left.tokens <= load.swap_budget:
            return soon
        line = left.tokens + sum(asked.paused.tokens for asked in self._asked.values())
        return min(soon, line / load.swap_rate)

    def _restore_seconds(self, choice: Choice, tokens: int, load: Load, costs: Costs) -> float:
        """Seconds until a context is there again; beside others it comes within steps' budgets."""
        if choice is Choice.DISCARD:
            return costs.forward_time(tokens)
        if choice is not Choice.SWAP or costs.swap_in is None:
            return 0.0
        pages = costs.pages(tokens)
        beside = pages / self._inward.rate if load.sequences and self._inward.rate else 0.0
        return max(costs.swap_in.time(pages), beside)

    def _remaining(self, instance: Instance, wait: Wait) -> tuple[float, float]:
        """The time that the program still expects, or of earlier waits, and of half of them."""
        if wait.expected_ns is not None and wait.expected_ns > wait.elapsed_ns:
            return ((wait.expected_ns - wait.elapsed_ns) / 1e9,) * 2
        kind = tool_kind(wait.tool)
        return self._input.durations.remaining(instance.user, kind, wait.elapsed_ns / 1e9)


def tool_kind(tool: str) -> str:
    """The name of a tool of a program's own among the kinds of waits."""
    return f"tool {tool}"
