"""Keys of users and of the server, for endpoints that other machines reach.

The server keeps its own key pair and every user's public key below `keys/` in its data folder. A
user holds one file: the user's key pair and the server's public key. All are CURVE25519 keys in Z85
text.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from pie_py.config.whole_files import write_whole

log = logging.getLogger("pie.keys")

LOCAL_USER = "local"  # the user of clients that connect without a key
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY_CHARACTERS = 40  # of Z85
SETTLED_NS = 1_000_000_000  # a folder that has not changed for so long is not read again
PREFIX = "pie-"  # of keys for HTTP
_SECRET_BYTES = 32
_NO_KEY = "no user {user!r} has a key; `pie-py keys list` shows them"
FORMAT = 1  # of the files with key pairs; those without a number are of the first


class KeyProblem(Exception):
    """A key that cannot be made or used; the text says why and how to mend it."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair."""

    public: str
    secret: str


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The keys that a user connects with."""

    user: str
    public: str
    secret: str
    server: str  # the server's public key

    @staticmethod
    def read(path: Path) -> ClientKey:
        """Reads a key file. Raises KeyProblem if it is not there or no key file."""
        try:
            key = ClientKey(**_fields(path))
        except OSError as error:
            raise KeyProblem(f"the key file {path} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError):
            raise KeyProblem(
                f"{path} is no key file; `pie-py keys add USER` on the server's machine makes one"
            ) from None
        for text in (key.public, key.secret, key.server):
            if not isinstance(text, str) or len(text) != _KEY_CHARACTERS:
                raise KeyProblem(f"{path} holds no valid key; was it cut off?")
        return key

    def write(self, path: Path) -> None:
        """Writes the key file, readable by its owner alone."""
        _write_private(path, asdict(self))


class KeyStore:
    """The keys of one server, in its data folder."""

    def __init__(self, data_folder: Path) -> None:
        self._folder = data_folder / "keys"

    def server_pair(self) -> KeyPair:
        """The server's key pair, made the first time."""
        path = self._folder / "server.json"
        if not path.exists():
            public, secret = zmq.curve_keypair()
            pair = KeyPair(public.decode(), secret.decode())
            with suppress(FileExistsError):  # another server has made its pair meanwhile
                _write_private(path, asdict(pair), replace=False)
        try:
            return KeyPair(**_fields(path))
        except (ValueError, TypeError):
            raise KeyProblem(
                f"{path} is damaged; restore it, or delete it and give every user a new key"
            ) from None

    def users(self) -> dict[str, str]:
        """User names by public key."""
        folder = self._folder / "users"
        if not folder.is_dir():
            return {}
        users = {}
        for file in sorted(folder.glob("*.pub")):
            try:
                if not _is_name(file.stem):
                    raise ValueError("its name is no user's")
                users[file.read_text(encoding="ascii").strip()] = file.stem
            except (OSError, ValueError) as error:  # no text, a folder, or removed meanwhile
                log.warning("%a holds no key of a user: %s", str(file), error)
        return users

    def stamp(self) -> int:
        """When a user's key was added or removed last, by the file system's clock in nanoseconds; 0
        if none ever was.
        """
        try:
            return (self._folder / "users").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def add(self, user: str) -> ClientKey:
        """Makes a key for a user and admits it. Raises KeyProblem as `make`."""
        key = self.make(user)
        self.admit(key)
        return key

    def make(self, user: str, *, rotate: bool = False) -> ClientKey:
        """A new key of a user, which is not admitted yet; to `rotate` is to take the place of the
        one that there is.

        Raises:
            KeyProblem: for a bad name, one that has a key already, or none to rotate.
        """
        if not _is_name(user):
            raise KeyProblem(
                f"{user!r} cannot name a user: take 1 to 64 letters, digits, '.', '_' or '-',"
                f" beginning with a letter or digit, and not {LOCAL_USER!r}"
            )
        path = self._path(user)
        if path.exists() and not rotate:
            raise KeyProblem(f"user {user} has a key already; `pie-py keys rotate {user}`")
        if rotate and not path.exists():
            raise KeyProblem(_NO_KEY.format(user=user))
        server = self.server_pair()  # fails on a damaged pair before the user gets a key
        public, secret = zmq.curve_keypair()
        return ClientKey(user, public.decode(), secret.decode(), server.public)

    def admit(self, key: ClientKey) -> None:
        """Lets a user in with a key, and with no other one."""
        write_whole(self._path(key.user), f"{key.public}\n".encode(), mode=0o644)

    def remove(self, user: str) -> None:
        """Forgets a user's key: new connections with it are refused.

        Raises:
            KeyProblem: if the user has none.
        """
        if not _USER.fullmatch(user) or not self._path(user).exists():
            raise KeyProblem(_NO_KEY.format(user=user))
        self._path(user).unlink()

    def become(self, users: dict[str, str]) -> None:
        """Has these users alone from now on, by their public keys: a copy of another store."""
        (self._folder / "users").mkdir(parents=True, exist_ok=True)
        former = self.users()
        for public, user in users.items():
            if former.get(public) != user:
                write_whole(self._path(user), f"{public}\n".encode(), mode=0o644)
        for user in set(former.values()) - set(users.values()):
            self._path(user).unlink(missing_ok=True)

    def _path(self, user: str) -> Path:
        return self._folder / "users" / f"{user}.pub"


class KnownUsers:
    """A store's users, read again when it has changed."""

    def __init__(self, store: KeyStore) -> None:
        """Reads nothing yet."""
        self.changes = 0  # another number whenever users may have changed
        self._store = store
        self._stamp: int | None = None
        self._users: dict[str, str] = {}

    def look(self) -> dict[str, str]:
        """User names by public key, as they are now.

        Raises:
            OSError: if the folder cannot be looked at.
        """
        stamp = self._store.stamp()
        if stamp != self._stamp:
            users = self._store.users()
            if users != self._users:
                self._users = users
                self.changes += 1
            # A second change may have the same stamp as long as the clock has not gone on.
            is_settled = time.time_ns() - stamp > SETTLED_NS
            self._stamp = stamp if is_settled else None
        return self._users


def _is_name(user: str) -> bool:
    return _USER.fullmatch(user) is not None and user != LOCAL_USER


def _fields(path: Path) -> dict[str, str]:
    """The fields of a file with a key pair.

    Raises:
        OSError, ValueError, TypeError: it cannot be read, or is none.
        KeyProblem: a newer pie_py has written it.
    """
    fields: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8-sig")))
    form = fields.pop("format", FORMAT)
    if not isinstance(form, int) or form > FORMAT:
        raise KeyProblem(
            f"{path} is of format {form}, and this pie_py reads up to {FORMAT}: a newer one has"
            " written it; install that one"
        )
    return fields


def _write_private(path: Path, fields: dict[str, str], *, replace: bool = True) -> None:
    text = json.dumps({"format": FORMAT, **fields}, indent=1)
    write_whole(path, text.encode(), replace=replace)


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
