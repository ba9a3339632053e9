"""Children of durable instances, which are durable: each is found again by its id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from pie_control.durable.waits import durable_of
from pie_control.errors import ApiError, ProgramRejected
from pie_control.instances.instance import Instance, InstanceEnded, InstanceState
from pie_control.instances.launcher import Done
from pie_control.instances.registry import Registry
from pie_control.programs.store import Program

# Starts a child under an id, of a parent and the number of its call; what is there of one with that
# id, if it has ended.
Begin = Callable[[Program, list[str], str, Instance, int], Awaitable[InstanceEnded | None]]


class Children:
    """The children of durable instances that their parents wait for."""

    def __init__(self, registry: Registry, begin: Begin, start_task: Callable[..., None]) -> None:
        self._registry = registry
        self._begin = begin
        self._start_task = start_task
        self._waiting: dict[tuple[str, int], Done] = {}  # by the parent, and its call's number
        registry.on_end.append(self._on_end)

    def launch(
        self, parent: Instance, program: Program, args: list[str], done: Done
    ) -> Callable[[], None]:
        """As `Launcher.start_child`, of a durable parent, whose journal may have the child."""
        durable = durable_of(parent)
        number = durable.coming_key
        if number not in durable.past.children:
            durable.child(number, self._registry.new_id(program))
        child, *end = durable.past.children[number]
        if end:
            done(InstanceEnded(InstanceState(end[0]), end[1]))
        else:
            self._waiting[parent.id, number] = done
            self._start_task(self._start, parent, number, child, program, args)
        return partial(self._give_up, parent, number, child)

    async def _start(
        self, parent: Instance, number: int, child: str, program: Program, args: list[str]
    ) -> None:
        journal = durable_of(parent).journal
        await journal.until_safe()
        if parent.state is not InstanceState.RUNNING or journal.problem is not None:
            return
        if self._registry.knows(child):
            ended = self._registry.find(child, None).ended
        else:
            try:
                ended = await self._begin(program, args, child, parent, number)
            except (ApiError, ProgramRejected, OSError) as error:
                if not isinstance(error, ApiError):
                    error = ApiError("internal", f"{program.name} cannot be launched: {error}")
                if (done := self._waiting.pop((parent.id, number), None)) is not None:
                    done(error)
                return
        if ended is not None:
            self.grown(parent, number, ended)

    def _give_up(self, parent: Instance, number: int, child: str) -> None:
        if parent.guest is None:  # it begins another life, and finds its child again
            return
        self._waiting.pop((parent.id, number), None)
        if self._registry.knows(child):
            self._registry.kill(self._registry.find(child, None), "its parent gave it up")

    def _on_end(self, instance: Instance) -> None:
        if instance.durable is not None and instance.parent is not None and instance.ended:
            _, number = instance.durable.past.head["parent"]
            self.grown(instance.parent, number, instance.ended)

    def grown(self, parent: Instance, number: int, ended: InstanceEnded) -> None:
        """A child has ended: its parent's journal says so, once."""
        durable = parent.durable
        if durable is None or parent.state is not InstanceState.RUNNING:
            return
        if len(durable.past.children.get(number, ())) == 1:
            durable.child(number, ended.state.value, ended.text)
        if (done := self._waiting.pop((parent.id, number), None)) is not None:
            done(ended)
        durable.wake()
