"""A node's report to the directory: load, caches."""

from __future__ import annotations

from collections import OrderedDict

from pie_cluster.wire.messages import MOST_HINTS, NO_WORKER, Load, program_key
from pie_control.instances.instance import Instance
from pie_control.instances.registry import Registry
from pie_control.models.served import ServedModels

PREFILL_RATE = 10_000  # prompt tokens per second, where the worker has measured none


class NodeFacts:
    """Looks at the models and notes the contexts of instances that end.

    Hints may be wrong: what one costs is a prompt computed again.
    """

    def __init__(self, models: ServedModels, registry: Registry) -> None:
        """Watches instances from now on; to be made before anything frees their pages."""
        self._models = models
        self._registry = registry
        self._cached: OrderedDict[int, int] = OrderedDict()  # tokens by key, newest last
        self._changed: OrderedDict[int, int] = OrderedDict()
        self._pool = 1  # tokens
        registry.on_end.insert(0, self._note)

    @property
    def pool_tokens(self) -> int:
        """Of all models' KV pools; as they were last, while the worker is away."""
        services = self._models.services.values()
        self._pool = sum(s.pages.size * s.pages.page_size for s in services) or self._pool
        return self._pool

    @property
    def prefill_rate(self) -> int:
        """Prompt tokens per second that the first model computes."""
        for service in self._models.services.values():
            costs = service.description.kv_costs
            if costs is not None:
                prefill = costs["prefill"]
                rates = zip(prefill["tokens"], prefill["seconds"], strict=True)
                return max(1, int(max(tokens / seconds for tokens, seconds in rates)))
        return PREFILL_RATE

    def load(self) -> Load:
        """The tasks of the node now."""
        services = list(self._models.services.values())
        if not services:  # the worker is away, with its pools: launches would wait for it
            self._cached.clear()
            self._changed.clear()
            return Load(self._registry.live_count, 0, NO_WORKER)
        used = sum((s.pages.size - s.pages.free) * s.pages.page_size for s in services)
        queued = sum(service.scheduler.queued_inputs for service in services)
        rested = [service.prefixes.rested() for service in services]
        longest = max((int(each * 1000) for each in rested if each is not None), default=None)
        return Load(self._registry.live_count, queued, used, None if None in rested else longest)

    def begin(self) -> None:
        """The directory knows nothing: all caches are told again."""
        self._changed = self._cached.copy()

    def cached(self) -> list[tuple[int, int]]:
        """Keys of (user, program) and the tokens that a launch would find, newest last: what has
        changed since it was told.
        """
        changed = list(self._changed.items())
        self._changed.clear()
        return changed

    def _note(self, instance: Instance) -> None:
        """An instance ends: what its context held is what the next one may find."""
        _, tokens = self._models.kv_of(instance)
        if not tokens or not any(s.prefixes.enabled for s in self._models.services.values()):
            return
        key = program_key(instance.user, instance.program.hash)
        for hints in (self._cached, self._changed):
            hints.pop(key, None)
            hints[key] = tokens
            if len(hints) > MOST_HINTS:
                hints.popitem(last=False)
