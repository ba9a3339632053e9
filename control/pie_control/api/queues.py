"""What a guest's queue handle stands for."""

from __future__ import annotations

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
