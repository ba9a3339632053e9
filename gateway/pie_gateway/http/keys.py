"""API keys: the users of requests, and whether a key is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cachetools import TTLCache
from starlette.datastructures import Headers

from pie_gateway.problems import Problem
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import ClientKey, KeyStore, find_user

# A key that was found is believed for so long; a removed one is refused after that.
FRESH_SECONDS = 2.0
CACHED_KEYS = 1024
# Before the key among the protocols that a WebSocket offers: a browser's has no headers of its own.
KEY_PROTOCOL = "pie-key."


class Keys:
    """Finds the users of requests."""

    def __init__(
        self, endpoint: str, data_folder: Path, local: bool, clock: Callable[[], float]
    ) -> None:
        """Takes where the control process and keys are, and whether only this machine comes."""
        self.store = KeyStore(data_folder)
        self._server_wants_keys = not parse_endpoint(endpoint).is_loopback
        self.needed = self._server_wants_keys or not local
        self._known: TTLCache[str, ClientKey] = TTLCache(CACHED_KEYS, FRESH_SECONDS, clock)

    def key_of(self, headers: Headers) -> ClientKey | None:
        """The key of a request's user; None where none is needed. Raises `Problem`: 401."""
        if not self.needed:
            return None
        given = _given(headers)
        if not given:
            raise _refused("this server wants an API key")
        if (known := self._known.get(given)) is not None:
            return known
        found = find_user(given, self.store)
        if found is None:
            raise _refused("this API key belongs to no user of this server, or its time is over")
        self._known[given] = found
        return found

    def rpc_key(self, key: ClientKey | None) -> ClientKey | None:
        """The key for the control process: it takes no key on this machine alone."""
        return key if self._server_wants_keys else None


def _given(headers: Headers) -> str:
    kind, _, key = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return key.strip()
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        if offered.strip().startswith(KEY_PROTOCOL):
            return offered.strip().removeprefix(KEY_PROTOCOL)
    return headers.get("x-api-key", "") or headers.get("api-key", "")  # Azure's


def _refused(why: str) -> Problem:
    return Problem(
        401,
        f"{why}: `pie-py keys add USER` on the server's machine makes one",
        code="invalid_api_key",
    )
