"""Requests about uploaded programs, of one server or of a cluster's gateway, and the check of those
that arrive chunk by chunk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import trio

from pie_control.confined.pool import ConfinedPool, JobStopped
from pie_control.errors import ApiError, ProgramRejected, exceeded, invalid
from pie_control.fairness import Owner
from pie_control.programs.source_check import check_file
from pie_control.programs.store import Program, ProgramStore, disk_errors, kind_of, write_whole
from pie_control.rpc.describe import describe_program
from pie_control.rpc.session import Session
from pie_control.shares import Shares
from pie_control.tasks import disk_may_refuse
from pie_py.config.printable import quoted
from pie_py.config.server import ServerConfig
from pie_py.wire import methods
from pie_py.wire.adapter_file import MOST_HEADER
from pie_py.wire.rpc import CHUNK_BYTES

PROGRAM_BYTES = "bytes of programs"
MAX_UPLOADS = 4  # of a session, at once
MOST_PROGRAMS = 4096  # of a user, which are listed together
USER_UPLOADS = 64  # of all sessions of a user: each has a file open


@dataclass(slots=True, eq=False)
class _Upload:
    """A program that is being sent."""

    digest: str
    name: str
    size: int
    path: Path
    file: FileIO
    received: int = 0

    def discard(self) -> None:
        """Removes what has been received."""
        self.file.close()
        with disk_may_refuse("remove what was received"):
            self.path.unlink(missing_ok=True)


def _inspect(path: Path) -> tuple[Any, str]:
    """Kind and hash of a program in a file. Blocking."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        return kind_of(file.read(MOST_HEADER)), digest


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
        """No upload is under way. The configuration says what a user's programs may take; `prepare`
        checks a component by compiling it, and that there is a runtime for JavaScript.
        """
        self._programs = programs
        self._share = shares.add(PROGRAM_BYTES, config.program_bytes, programs.bytes_of)
        self._confined = confined
        self._prepare = prepare
        self._of: dict[Session, dict[str, _Upload]] = {}  # under way, by content hash
        self._checked: dict[_Upload, str] = {}  # that have arrived, with their users

    def forget(self, session: Session) -> None:
        """A session has ended: its unfinished uploads go."""
        for upload in self._of.pop(session, {}).values():
            upload.discard()

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
        """Begins an upload; answers with the program, and begins none, if its bytes are here
        already, else with null.

        Raises:
            ApiError: `invalid-argument`, `limit-exceeded`, `busy`.
        """
        self._programs.check(asked.name, asked.size)
        uploads = self._of.setdefault(session, {})
        if asked.hash in uploads:
            uploads.pop(asked.hash).discard()
        if not self._programs.has_named(asked.hash, asked.name, session.user):
            self._check_room(session.user, asked.size)
        with disk_errors():
            known = self._programs.name_again(asked.hash, asked.name, session.user)
        if known is not None:
            return describe_program(known)
        if asked.size == 0:
            raise invalid("the program is empty")
        if len(uploads) >= MAX_UPLOADS:
            raise ApiError("busy", f"{MAX_UPLOADS} uploads are under way; finish one first")
        if len(self._uploads_of(session.user)) >= USER_UPLOADS:
            raise ApiError(
                "busy", f"{USER_UPLOADS} uploads of yours are under way, in all sessions; try later"
            )
        with disk_errors():
            path = self._programs.temporary_path()
            file = path.open("wb", buffering=0)  # a full disk shows at once, not at the end
        uploads[asked.hash] = _Upload(asked.hash, asked.name, asked.size, path, file)
        return None

    async def upload_chunk(self, session: Session, asked: methods.UploadChunk) -> Any:
        """Takes the next bytes of an upload; answers with the program after the last ones, once it
        is checked.

        Raises:
            ApiError: `not-found`, `invalid-argument`.
            ProgramRejected: if the program cannot run here.
        """
        uploads = self._of.get(session, {})
        upload = uploads.get(asked.hash)
        if upload is None:
            raise ApiError("not-found", "no such upload is under way; begin it again")
        size = len(asked.data)
        if asked.offset != upload.received or size > CHUNK_BYTES or not size:
            raise invalid(
                f"byte {upload.received} and up to {CHUNK_BYTES} bytes are to come next, not {size}"
                f" bytes from {asked.offset}"
            )
        upload.received += size
        if upload.received > upload.size:
            uploads.pop(asked.hash).discard()
            raise invalid(f"more than the {upload.size} bytes announced came")
        try:
            with disk_errors():
                write_whole(upload.file, asked.data)
        except ApiError:
            uploads.pop(asked.hash).discard()
            raise
        if upload.received < upload.size:
            return None
        del uploads[asked.hash]
        upload.file.close()
        self._checked[upload] = session.user
        try:
            return describe_program(await self._store(upload, session.user))
        finally:
            del self._checked[upload]
            upload.discard()

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

    async def _store(self, upload: _Upload, user: str) -> Program:
        """Checks a program that has arrived, and stores it if it can run here."""
        kind, found = await trio.to_thread.run_sync(_inspect, upload.path)
        if found != upload.digest:
            raise invalid(f"the bytes hash to {found}, not {upload.digest}")
        if kind != "component":
            path, name = str(upload.path), upload.name
            try:
                await self._confined.call(Owner(user, ""), name, check_file, path, name)
            except JobStopped as error:
                raise ProgramRejected(f"{error.message} to compile") from None
        # Others' runtime is there in any case, or they have none.
        if kind in ("component", "javascript"):
            date, path = self._programs.date_ns(), str(upload.path)
            await self._prepare(Program(found, upload.name, kind, upload.size, user, date, path))
        self._check_room(user, 0)  # it is among those that are coming
        with disk_errors():
            return self._programs.adopt(upload.path, found, upload.name, kind, user)

    def _uploads_of(self, user: str) -> list[_Upload]:
        """A user's uploads that are under way or checked, in all sessions."""
        arriving = [
            upload
            for session, uploads in self._of.items()
            if session.user == user
            for upload in uploads.values()
        ]
        return arriving + [upload for upload, of_user in self._checked.items() if of_user == user]

    def _check_room(self, user: str, size: int) -> None:
        """Refuses what would take more of the disk than one user may have, with what is coming."""
        coming = sum(upload.size for upload in self._uploads_of(user))
        have, most = self._share.has(user), self._share.most(user)
        if have + coming + size > most:
            raise exceeded(
                f"your programs take {have} bytes, {coming} more are coming, and one user may have"
                f" {most}: remove some with `pie-py programs rm`"
            )
        if self._programs.count_of(user) >= MOST_PROGRAMS:
            raise exceeded(
                f"you have {MOST_PROGRAMS} programs, the most that one user may: remove some with"
                " `pie-py programs rm`"
            )


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
