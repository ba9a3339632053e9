"""What users have of what one user may have: for themselves and for operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pie_control.instances.registry import Registry
from pie_control.models.model import ModelService
from pie_control.models.served import ServedModels
from pie_control.programs.store import ProgramStore
from pie_control.rpc.sessions import MAX_SESSIONS, Sessions
from pie_py.config.quotas import Quotas

PROGRAM_BYTES = "bytes of programs"


class Usage:
    """Counts what users have, when they ask."""

    def __init__(
        self,
        quotas: Quotas,
        registry: Registry,
        models: ServedModels,
        programs: ProgramStore,
        sessions: Sessions,
        program_bytes: int,
    ) -> None:
        """Takes the quotas, what counts, and the bytes of programs that the server keeps."""
        self._quotas = quotas
        self._registry = registry
        self._models = models
        self._programs = programs
        self._sessions = sessions
        self._program_bytes = program_bytes

    def of(self, user: str) -> dict[str, Any]:
        """A user's weight and priority, and of each kind what he `has` and `may` have.

        `may` is null where more is lent while it is free.
        """
        quota = self._quotas.of(user)
        return {
            "user": user,
            "weight": quota.weight,
            "priority": quota.priority,
            "launches": quota.launches if quota.launches < float("inf") else None,
            "kinds": [
                {"kind": kind, "has": has, "may": may} for kind, has, may in self._kinds(user)
            ],
        }

    def users(self) -> list[str]:
        """All who have something."""
        users = {instance.user for instance in self._registry.instances(None)}
        users |= {program.uploaded_by for program in self._programs.list()}
        return sorted(users | self._sessions.users())

    def _kinds(self, user: str) -> Iterator[tuple[str, int, int | None]]:
        most = self._quotas.most
        alive = self._registry.users.alive(user)
        yield "instances", alive, most(user, self._registry.most)
        memory = self._quotas.memory(user, self._registry.guest_memory)
        yield "bytes of memory", self._registry.memory_of(user), memory
        yield "sessions", self._sessions.count_of(user), most(user, MAX_SESSIONS)
        messages = self._registry.users.messages(user)
        yield "bytes of messages", messages, most(user, self._registry.message_bytes)
        programs = self._programs.bytes_of(user)
        yield PROGRAM_BYTES, programs, most(user, self._program_bytes)
        yield "futures", self._registry.users.futures(user), most(user, self._registry.futures)
        for name, service in self._models.services.items():
            for kind, has, may in self._of_model(user, service):
                yield f"{name}: {kind}", has, may

    def _of_model(self, user: str, service: ModelService) -> Iterator[tuple[str, int, int | None]]:
        spaces = [space for of, space in service.spaces.items() if of.user == user]
        most = self._quotas.most
        yield "KV pages", sum(space.pages.resident for space in spaces), None
        yield "embeds", sum(s.embeds_held for s in spaces), most(user, service.embeds.size)
        yield "samplers", sum(len(s.samplers) for s in spaces), most(user, service.samplers.size)
