"""What the evictor, the adviser and their budgets see of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance
    from pie_control.resources.host_memory import HostMemory
    from pie_control.resources.parts import Parts
    from pie_control.resources.pools import PagePool
    from pie_control.resources.space import Space
    from pie_control.scheduler.scheduler import Scheduler
    from pie_py.wire.plan import ModelDescription


class ServedModel(Protocol):
    """One model with its pools, its instances' addresses, and its scheduler."""

    description: ModelDescription
    pages: PagePool
    host_pages: HostMemory
    spaces: dict[Instance, Space]
    scheduler: Scheduler

    @property
    def running(self) -> int:
        """Instances that have commands queued or at the worker."""

    def page_parts(self) -> Parts:
        """What users hold of the pages, by their instances and exports."""

    def end_younger(self, instance: Instance, count: int) -> bool:
        """Ends instances that make way until `count` pages are free, if that can be enough."""
