"""Keys for HTTP: a user's key for RPC, written so that a header can carry it."""

from __future__ import annotations

import base64
import binascii

import zmq
from zmq.utils import z85

from pie_py.config.keys import ClientKey, KeyStore

PREFIX = "pie-"
_SECRET_BYTES = 32


def api_key(key: ClientKey) -> str:
    """The key for HTTP of a user: the secret half of the user's key pair."""
    return PREFIX + base64.urlsafe_b64encode(z85.decode(key.secret)).decode().rstrip("=")


def find_user(text: str, keys: KeyStore) -> ClientKey | None:
    """The key of the user that an API key belongs to; None if it belongs to no user here."""
    secret = _secret(text)
    if secret is None:
        return None
    public = zmq.curve_public(secret.encode()).decode()
    user = keys.users().get(public)
    if user is None:
        return None
    return ClientKey(user, public, secret, keys.server_pair().public)


def _secret(text: str) -> str | None:
    if not text.startswith(PREFIX):
        return None
    try:
        data = base64.urlsafe_b64decode(text.removeprefix(PREFIX) + "=")
    except (binascii.Error, ValueError):
        return None
    return z85.encode(data).decode() if len(data) == _SECRET_BYTES else None
