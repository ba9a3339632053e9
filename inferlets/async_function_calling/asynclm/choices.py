"""The choices of the command line: alone here, so that `--help` imports little else."""

from __future__ import annotations

from enum import StrEnum

POLICIES = ("cheapest", "min-waste", "preserve", "swap", "discard")


class Mode(StrEnum):
    """How calls are made: the paper's four sides (AsyncLM, section 6)."""

    SYNC = "sync"  # one call, its result, the next call
    SYNC_PARALLEL = "sync_parallel"  # all calls that are ready in one turn, run concurrently
    ASYNC_NAIVE = "async_naive"  # asynchronous, with a new stateless request at every interrupt
    ASYNC = "async"  # asynchronous, interrupts in mid-generation

    @property
    def is_async(self) -> bool:
        """True if calls run while the model writes on."""
        return self in (Mode.ASYNC, Mode.ASYNC_NAIVE)


class Style(StrEnum):
    """The form of the prompt."""

    COMPACT = "compact"
    JSON = "json"


class Syntax(StrEnum):
    """The language of calls."""

    PYTHON = "python"
    JSON = "json"


class Strictness(StrEnum):
    """The form that generated blocks are held to."""

    MARKERS = "markers"  # the blocks' form only
    CALLS = "calls"  # any call with literal arguments
    TOOLS = "tools"  # calls of the functions that there are
