"""Makes the guests that programs run in: from their component, or a warm one that waits already."""

from __future__ import annotations

from pie_control.programs.components import Components
from pie_control.programs.instantiation import Instantiation
from pie_control.programs.store import Program
from pie_control.programs.warm import WarmInstances
from pie_control.wasm import Guest


class Guests:
    """Guests of all programs, with the same limits."""

    def __init__(
        self, instantiation: Instantiation, components: Components, warm: WarmInstances
    ) -> None:
        self._instantiation = instantiation
        self._components = components
        self._warm = warm

    async def prepare(self, program: Program) -> None:
        """Loads what a program runs in, compiling it off the event loop the first time.

        Raises:
            ProgramRejected: if it cannot run here.
        """
        await self._components.load(program)

    def is_prepared(self, program: Program) -> bool:
        """Whether `start` may be called for a program."""
        return self._components.find(program) is not None

    def start(self, program: Program, state: object, args: list[str]) -> tuple[Guest, bool]:
        """A guest that has had no turn, and whether it is a warm one, which waits for its source.

        Args:
            program: a prepared one.
            state: what host functions get from this guest.
            args: the arguments; a warm guest gets them with its source.
        """
        component = self._components.find(program)
        assert component is not None, "the program is prepared"
        warm = self._warm.take(component, state)
        if warm is not None:
            return warm, True
        guest = self._instantiation.guest(component, state)
        guest.start(args)
        return guest, False

    async def run(self) -> None:
        """Keeps warm guests ready, until cancelled."""
        try:
            await self._warm.run()
        finally:
            self._instantiation.stop()
