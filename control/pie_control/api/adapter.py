"""Trait `adapter`: forward passes through a LoRA adapter."""

from __future__ import annotations

from pie_control.api.binder import implement
from pie_control.api.forward import enqueue_forward
from pie_control.api.runtime import queue_of
from pie_control.instances.instance import Instance
from pie_control.models.adapters import Adapter
from pie_control.scheduler.queue import CommandQueue


def available_adapters(instance: Instance, model: str) -> list[str]:
    """Names of the adapters that may be used with a model."""
    service = instance.host.service(model)
    service.check_trait("adapter")
    return service.adapters.names


def forward_with_adapter(
    instance: Instance,
    queue: int,
    adapter: str,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
) -> None:
    """As `forward`, through an adapter."""
    target = queue_of(instance, queue)
    found = find_adapter(target, adapter)
    enqueue_forward(
        target, input_pages, input_embeds, output_pages, output_embeds, mask, adapter=found.slot
    )
    found.users.add(instance)


def find_adapter(target: CommandQueue, name: str) -> Adapter:
    """The adapter of a name, of a queue's model.

    Raises:
        ApiError: `unsupported`, `not-found`.
    """
    target.service.check_trait("adapter")
    return target.service.adapters.find(name)


FUNCTIONS = implement("adapter", available_adapters, forward_with_adapter)
