"""The Python runtime: runs the source that the server gives it."""

from __future__ import annotations

import sys

from wit_world.imports import source

from inferlet._guest import component, known, program, rehearsal
from inferlet._guest.modules import Program


class Runner(component.Runner):
    """Runs the program that the server gives it."""

    def program(self, args: list[str]) -> tuple[Program, list[str]]:
        """The program and its arguments, once the server has them."""
        if source.is_early():
            rehearsal.rehearse(4)
        file, text, kept, args = source.read()
        sys.modules.update(known.imported(text))
        if kept:
            return Program.restored(file, text, kept), args
        found, quiet = program.prepare(file, text)
        source.keep(found.kept() if quiet else "")
        return found, args


def rehearse(tokens: int) -> None:
    """Runs the rehearsal's program as one that the server gives; see `rehearsal.rehearse`."""
    kept = Program.compiled(rehearsal.FILE, rehearsal.TEXT)[0].kept()
    stand_ins = [
        (source, "is_early", lambda: False),
        (source, "read", lambda: (rehearsal.FILE, rehearsal.TEXT, kept, [str(tokens)])),
    ]
    with rehearsal.standing_in(stand_ins):
        rehearsal.rehearse(tokens, lambda: Runner().run([]))
