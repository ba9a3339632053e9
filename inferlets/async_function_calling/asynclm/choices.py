"""The choices of the command line: alone here, so that `--help` imports little else."""

from __future__ import annotations

from enum import StrEnum

POLICIES = ("cheapest", "min-waste", "preserve", "swap", "discard")


class Mode(StrEnum):
    """How calls are made: asynchronously, or the ways it is compared with (AsyncLM, section 6)."""

    SYNC = "sync"  # one call, its result, the next call
    SYNC_PARALLEL = "sync_parallel"  # all calls that are ready in one turn, run concurrently
    ASYNC = "async"  # calls run while the model writes on, interrupts in mid-generation


class Style(StrEnum):
    """The form of the prompt."""

    COMPACT = "compact"
    JSON = "json"
