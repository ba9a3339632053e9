"""The device programs that were read, by what they were read from."""

from __future__ import annotations

from cachetools import LRUCache

from pie_control.confined.pool import ConfinedPool
from pie_control.device_programs.reading import is_of_fields, read
from pie_control.fairness import Owner
from pie_py.device_programs.recording import Recorded

_KEPT = 8 << 20  # characters of keys, canonical texts and places


class KnownPrograms:
    """Programs of all users: what one gives is the same for all."""

    def __init__(self, confined: ConfinedPool) -> None:
        self._confined = confined
        self._kept: LRUCache[str, Recorded] = LRUCache(_KEPT, getsizeof=_characters)

    def find(self, key: str) -> Recorded | None:
        """A program that was read before, or that of a sampler's fields, which is read now: others
        have constants of a stranger's.

        Raises:
            ApiError: `invalid-argument`, with the place in the text.
        """
        found: Recorded | None = self._kept.get(key)
        return self._keep(key, read(key)) if found is None and is_of_fields(key) else found

    async def read(self, owner: Owner, key: str) -> None:
        """Has a program read by a confined process; `find` gives it then.

        Raises:
            ApiError: `invalid-argument`, with the place in the text; `limit-exceeded`.
        """
        self._keep(key, await self._confined.call(owner, "the device program", read, key))

    def _keep(self, key: str, answer: tuple[str, list[str]]) -> Recorded:
        text, places = answer
        found = Recorded(text, tuple(places))
        if _characters(found) + len(key) < _KEPT:
            self._kept[key] = found
        return found


def _characters(of: Recorded) -> int:
    return len(of.text) + sum(map(len, of.places)) + 1024
