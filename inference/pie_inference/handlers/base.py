"""What the engine knows of the handler of one kind of command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pie_inference.device.future import DeviceFuture
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import BatchResult, Clear

NONE = np.zeros(0, np.int32)


def writes_nothing(model: ServedModel, batch: Any) -> Clear:
    """For a kind that writes no embed, slot or host page."""
    return Clear(NONE, NONE, NONE)


def writes_embeds(model: ServedModel, batch: Any) -> Clear:
    """For a kind whose batch names all that it writes as `embeds`."""
    return Clear(NONE, batch.embeds, NONE)


@dataclass(slots=True)  # not frozen, for benchmarks put functions that measure around `run`
class Handler:
    """How batches of one kind are run. The registry knows which kind, so `Any` is that kind."""

    # Returns None if there is nothing to tell but that the batch has been run.
    run: Callable[[ServedModel, Any], DeviceFuture[BatchResult] | None]
    # What a batch was to write. It is cleared if the batch fails: memory that changes its owner
    # would else show the new owner what the earlier one has left there.
    writes: Callable[[ServedModel, Any], Clear] = writes_nothing
    # Whether the commands behind it wait long enough for results before it to go ahead of it.
    long: bool = False
