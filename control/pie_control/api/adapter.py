"""Traits `adapter` and `introspect`: forward passes through a LoRA adapter, and with a report of
what was attended to.
"""

from __future__ import annotations

from pie_control.api.binder import queue_of
from pie_control.api.forward import ForwardSpans, enqueue_forward
from pie_control.errors import exceeded, invalid
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.models.adapters import Adapter
from pie_control.models.model import OpenQueue
from pie_control.models.served import ServedModels
from pie_control.scheduler.commands.forward import NO_ADAPTER, Observation
from pie_control.scheduler.commands.run import version_of
from pie_py.wire.plan import DETAILS, ModelDescription


class AdapterCalls:
    """Forward passes through the adapters of the served models."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def available_adapters(self, instance: Instance, model: str) -> list[str]:
        """Names of the adapters that may be used with a model."""
        service = self._models.service(model)
        service.check_trait("adapter")
        return service.adapters.names(instance.user)

    def weights_version(self, instance: Instance, model: str, adapter: str) -> str:
        """The versions of the instance's adapter from now on and of the model's weights now."""
        service = self._models.service(model)
        if not adapter:
            return version_of(None, service.weights)
        service.check_trait("adapter")
        found = service.adapters.find(adapter, instance)
        found.users.add(instance)
        return version_of(found.version, service.weights)


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
    found = find_adapter(instance, target, adapter)
    spans = ForwardSpans(input_pages, input_embeds, output_pages, output_embeds, mask)
    enqueue_forward(target, spans, adapter=found.slot)
    found.users.add(instance)


def find_adapter(instance: Instance, target: OpenQueue, name: str) -> Adapter:
    """An instance's adapter, by name. Raises ApiError `unsupported`, `not-found`."""
    target.model.check_trait("adapter")
    return target.model.adapters.find(name, instance)


def used_by(instance: Instance, adapter: Adapter | None) -> int:
    """The slot of an adapter, which an instance uses from now on; that of none."""
    if adapter is None:
        return NO_ADAPTER
    adapter.users.add(instance)
    return adapter.slot


MAX_NUMBERS = 1 << 19  # of one answer: 2 MiB, as Wasmtime lifts 2.6 MB


def forward_with_attention(
    instance: Instance,
    queue: int,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
    observed: int,
    detail: str,
    adapter: str,
) -> int:
    """As `forward`, and opens a future of what the last inputs attend to."""
    target = queue_of(instance, queue, "introspect")
    rows = _rows(target.model.description, detail)
    through = find_adapter(instance, target, adapter) if adapter else None

    def observe(inputs: int, columns: int) -> Observation:
        if not 1 <= observed <= inputs:
            raise invalid(f"{observed} of {inputs} inputs to observe; 1 to {inputs} can be")
        if rows * columns > MAX_NUMBERS:
            raise exceeded(
                f"{rows} rows of {columns} numbers; {MAX_NUMBERS} numbers at most: ask for less"
                " detail"
            )
        future = instance.futures.create(FutureKind.ATTENTION)
        return Observation(future, observed, DETAILS.index(detail), rows)

    observation = enqueue_forward(
        target,
        ForwardSpans(input_pages, input_embeds, output_pages, output_embeds, mask),
        adapter=through.slot if through else NO_ADAPTER,
        observe=observe,
        observed=observed,
    )
    assert observation is not None
    if through:
        through.users.add(instance)
    return observation.future.handle


def _rows(facts: ModelDescription, detail: str) -> int:
    return {"total": 1, "layers": facts.layers, "heads": facts.layers * facts.heads}[detail]
