"""The component's entry: what the server calls."""

from __future__ import annotations

import gc
from collections.abc import Callable

import wit_world
from componentize_py_types import Err

from inferlet._guest import image, program, rehearsal, sandbox, standard
from inferlet._guest.modules import Program
from inferlet._guest.streams import LogStream

standard.import_all()

REHEARSED = 64  # tokens: enough for CPython to settle on how it runs the code
STARTS = 30  # of programs, for the same reason


class Runner(wit_world.WitWorld):  # type: ignore[misc]
    """Runs a program; a component's `WitWorld` derives from it and says where the program is."""

    def program(self, args: list[str]) -> tuple[Program, list[str]]:
        """The program and its arguments, by default those of `run`.

        Raises:
            ProgramError: if there is no code.
        """
        raise NotImplementedError

    def run(self, args: list[str]) -> str:
        """The export of the world; see the contract."""
        try:
            found, args = self.program(args)
            sandbox.start(found.file, args)
            return program.run(found, args)
        except program.ProgramError as error:
            raise Err(program.as_text(str(error))) from None
        finally:
            for stream in _streams:
                stream.finish()


_streams: list[LogStream] = []


def seal(rehearse: Callable[[int], None] = rehearsal.rehearse) -> None:
    """Ends the build: from here on there is no operating system.

    Args:
        rehearse: runs a program that generates so many tokens, as the component runs programs.
    """
    _streams[:] = sandbox.seal()
    rehearse(REHEARSED)
    for _ in range(STARTS):
        rehearse(4)
    gc.collect()
    image.list_objects()
    image.fill_gaps()
    gc.freeze()  # what the build made lives until the end: no collection needs to look at it
