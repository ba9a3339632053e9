"""What a guest's handles of queues and of their runs stand for."""

from __future__ import annotations

from pie_control.commands.run import RunCommand
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_control.models.model import OpenQueue


def queue_of(instance: Instance, handle: int, trait: str | None = None) -> OpenQueue:
    """The queue behind a handle, of a model that has a trait.

    Raises:
        ApiError: `invalid-handle`, `unsupported`.
    """
    try:
        queue: OpenQueue = instance.queues[handle]
    except KeyError:
        raise ApiError("invalid-handle", f"{handle} is no queue of this instance") from None
    if trait is not None and trait not in queue.model.traits:
        queue.model.check_trait(trait)
    return queue


def run_of(instance: Instance, queue: int, run: int) -> tuple[OpenQueue, RunCommand]:
    """A queue, and the run behind a handle.

    Raises:
        ApiError: `invalid-handle`, `unsupported`.
    """
    target = queue_of(instance, queue, "sample")
    try:
        return target, target.runs[run]
    except KeyError:
        raise ApiError(
            "invalid-handle", f"{run} is no run of this queue (ended already?)"
        ) from None
