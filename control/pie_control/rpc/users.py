"""Who holds which key, for the door to clients."""

from __future__ import annotations

from typing import Protocol

from pie_py.config.keys import LOCAL_USER, KeyStore, KnownUsers


class NotKnownNow(Exception):
    """Whether a key is a user's cannot be told at present: the client may try again."""


class Users(Protocol):
    """Users by their public keys."""

    async def find(self, key: str) -> str | None:
        """The user of a key; None if no user has it.

        Raises:
            NotKnownNow: if that cannot be told.
        """

    @property
    def changes(self) -> int:
        """Another number whenever keys may have been removed."""


class FolderUsers:
    """Those whose keys are in the data folder; a cluster's members have the operator's rights."""

    def __init__(self, keys: KeyStore, member: str = "") -> None:
        """Takes the members' public key, if there are members."""
        self._known = KnownUsers(keys)
        self._member = member

    async def find(self, key: str) -> str | None:
        """The user of a key; None if no user has it."""
        return LOCAL_USER if key == self._member else self._known.look().get(key)

    @property
    def changes(self) -> int:
        """Another number whenever keys may have been removed."""
        self._known.look()
        return self._known.changes
