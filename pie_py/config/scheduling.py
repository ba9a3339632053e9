"""Settings of batching, of pages under memory pressure, and of shared prefixes."""

from __future__ import annotations

import sys

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from pie_py.config.section import Section

STEPS = 32  # forwards of one in so many of the prompts' tokens are steps, which are not cut
KEYS = 4096  # of inputs that run at once; where they look at more keys, fewer inputs may


class SchedulerConfig(Section):
    """The contents of batches."""

    # "adaptive", or `package.module:function`; see docs/scheduling.md.
    policy: str = "adaptive"
    # Inputs of prompts that one step of others may have beside it. Longer prompts run in parts
    # then, so that the others do not wait for the whole of them; inputs that can only run at once
    # may be no more. None runs all of them whole.
    prompt_tokens: PositiveInt | None = 512
    # What a batch beside steps of other users may take, in milliseconds, by what parts of prompts
    # before have taken. Beside steps of the same user it is the time of `prompt_tokens` inputs
    # without a context, from as much to four times as much. 0: only the number of inputs counts.
    prompt_ms: NonNegativeFloat = 25.0

    @property
    def step_tokens(self) -> int:
        """Inputs of the longest forward that counts as a step: one token, or a few."""
        return sys.maxsize if self.prompt_tokens is None else max(1, self.prompt_tokens // STEPS)

    def most_at_once(self, keys: int) -> int:
        """Inputs of a forward that may have to run at once, if they look at so many keys.

        It does not depend on the machine or its load: a program is refused always or never.
        """
        if self.prompt_tokens is None:
            return sys.maxsize
        return max(self.step_tokens, self.prompt_tokens * KEYS // max(KEYS, keys))


class InterceptionConfig(Section):
    """The treatment of the pages of waiting instances when others need pages."""

    # "min-waste", "swap", "preserve" (nothing), or `package.module:function`; see
    # docs/interception.md.
    policy: str = "min-waste"
    wait_seconds: PositiveFloat = 60.0  # the most that an instance waits for pages

    @field_validator("policy")
    @classmethod
    def _can_be_carried_out(cls, policy: str) -> str:
        if policy not in ("min-waste", "swap", "preserve") and ":" not in policy:
            raise ValueError(
                f"{policy!r}: give min-waste, swap, preserve or package.module:function; the"
                " server can't discard pages, because only their program can recompute them"
            )
        return policy


class PrefixCacheConfig(Section):
    """Pages of shared prefixes, kept for instances that compute the same text."""

    enabled: bool = True  # contexts start with the longest prefix that is kept
    # Whether users find what others have computed. The time that a text takes then tells whether
    # another user has had one with the same prefix.
    shared: bool = False
