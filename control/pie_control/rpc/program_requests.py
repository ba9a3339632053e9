"""Requests about uploaded programs, of one server or of a cluster's gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pie_control.confined.pool import ConfinedPool
from pie_control.errors import ApiError
from pie_control.programs.store import Program, ProgramStore
from pie_control.rpc.describe import describe_program
from pie_control.rpc.session import Session
from pie_control.rpc.uploads import Uploads
from pie_control.shares import Shares
from pie_py.config.printable import quoted
from pie_py.config.server import ServerConfig
from pie_py.wire import methods

PROGRAM_BYTES = "bytes of programs"


class ProgramRequests:
    """Lists and takes programs, and says which may be removed."""

    def __init__(
        self,
        config: ServerConfig,
        shares: Shares,
        programs: ProgramStore,
        prepare: Callable[[Program], Awaitable[object]],
        confined: ConfinedPool,
    ) -> None:
        """Takes the parts of `Uploads`; the configuration says what a user's programs may take."""
        self._programs = programs
        self._share = shares.add(PROGRAM_BYTES, config.program_bytes, programs.bytes_of)
        self._uploads = Uploads(programs, prepare, confined, self._share)

    def forget(self, session: Session) -> None:
        """A session has ended: its unfinished uploads go."""
        self._uploads.forget(session)

    def programs(self, session: Session, asked: methods.Programs) -> Any:
        """The programs that a user sees."""
        return [describe_program(program) for program in self._programs.list(session.scope)]

    def bytes_of(self, user: str) -> dict[str, Any]:
        """Bytes that a user's programs take, and may take, as `quota` has it."""
        share = self._share
        return {"kind": share.kind, "has": share.has(user), "may": share.most(user)}

    def has(self, session: Session, asked: methods.Has) -> Any:
        """True if a program's bytes are here."""
        return self._programs.has(asked.hash)

    def upload(self, session: Session, asked: methods.Upload) -> Any:
        """Begins an upload; answers with the program if its bytes are here, else with null."""
        program = self._uploads.begin(session, asked)
        return None if program is None else describe_program(program)

    async def upload_chunk(self, session: Session, asked: methods.UploadChunk) -> Any:
        """Takes the next bytes of an upload; answers with the program after the last ones."""
        program = await self._uploads.add(session, asked)
        return None if program is None else describe_program(program)

    def to_remove(self, session: Session, asked: methods.RemoveProgram) -> Sequence[Program]:
        """The user's programs of a name, or of a hash.

        Raises:
            ApiError: `not-found`, also if they are another user's.
        """
        programs = self._programs.all_of(asked.program, session.user)
        if not programs:
            raise ApiError("not-found", f"no program is called {quoted(asked.program)}")
        return programs

    def remove(self, programs: Sequence[Program]) -> Any:
        """Removes programs, and returns which they were."""
        self._programs.remove(programs)
        return [describe_program(program) for program in programs]


def check_unused(asked: methods.RemoveProgram, running: Sequence[str]) -> None:
    """No instance is running of a program that is to go, or it goes by force.

    Raises:
        ApiError: `busy`.
    """
    if running and not asked.force:
        named = ", ".join(running[:5])
        raise ApiError(
            "busy",
            f"{asked.program} has {len(running)} running instances ({named}): end them, or have"
            " them ended by force",
        )
