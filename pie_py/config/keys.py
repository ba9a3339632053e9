"""Keys of users and of the server, for endpoints that other machines reach.

The server keeps its own key pair and every user's public key below `keys/` in its data folder. A
user holds one file: the user's key pair and the server's public key. All are CURVE25519 keys in Z85
text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import math
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from pie_py.config.whole_files import write_whole

log = logging.getLogger("pie.keys")

LOCAL_USER = "local"  # the user of clients that connect without a key
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_USER = re.compile(_NAME)
_FILE = re.compile(rf"({_NAME})(?:@({_NAME}))?")  # of a user's key, and of one with a name
_KEY_CHARACTERS = 40  # of Z85
SETTLED_NS = 1_000_000_000  # a folder that has not changed for so long is not read again
PREFIX = "pie-"  # of keys for HTTP
_SECRET_BYTES = 32
_NO_KEY = "no user {user!r} has {what}; `pie-py keys list` shows them"
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


@dataclass(frozen=True, slots=True)
class Admitted:
    """The public key of a user who is let in with it; one of several has a `name`."""

    user: str
    name: str
    public: str
    until: float = math.inf  # seconds since the epoch

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.user}{self.name and '@'}{self.name}.pub"

    @property
    def date(self) -> str:
        """Until when, as ISO 8601 has it; nothing if without end."""
        if self.until == math.inf:
            return ""
        return datetime.fromtimestamp(self.until, UTC).isoformat(timespec="seconds")


class KeyStore:
    """The keys of one server, in its data folder."""

    def __init__(self, data_folder: Path) -> None:
        self._folder = data_folder / "keys"
        self._users = self._folder / "users"

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

    def admitted(self) -> list[Admitted]:
        """The keys of all users, also those whose time is over."""
        if not self._users.is_dir():
            return []
        found = []
        for file in sorted(self._users.glob("*.pub")):
            try:
                found.append(_read_admitted(file))
            except (OSError, ValueError) as error:  # no text, a folder, or removed meanwhile
                log.warning("%a holds no key of a user: %s", str(file), error)
        return found

    def users(self) -> dict[str, str]:
        """User names by public key, of those that are let in now."""
        now = time.time()
        return {key.public: key.user for key in self.admitted() if now < key.until}

    def stamp(self) -> int:
        """When a user's key was added or removed last, in nanoseconds of files; 0: never."""
        try:
            return self._users.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def add(self, user: str, name: str = "") -> ClientKey:
        """Makes a key for a user and admits it. Raises KeyProblem as `make`."""
        key = self.make(user, name)
        self.admit(key, name)
        return key

    def make(self, user: str, name: str = "", *, rotate: bool = False) -> ClientKey:
        """A new key of a user, which is not admitted yet; to `rotate` is to take the place of the
        one that there is. Raises `KeyProblem` for a bad name, one that has a key already, or none
        to rotate.
        """
        for what in (user, name) if name else (user,):
            if not _is_name(what):
                raise KeyProblem(
                    f"{what!r} cannot name a user or a key: take 1 to 64 letters, digits, '.', '_'"
                    f" or '-', beginning with a letter or digit, and not {LOCAL_USER!r}"
                )
        is_there = (self._users / Admitted(user, name, "").file).exists()
        if is_there and not rotate:
            raise KeyProblem(
                f"user {user} has a key already{name and f', {name}'};"
                f" `pie-py keys rotate {user}{name and f' --name {name}'}` makes another in its"
                " place, `keys add` with --name one beside it"
            )
        if rotate and not is_there:
            raise _no_key(user, name)
        server = self.server_pair()  # fails on a damaged pair before the user gets a key
        public, secret = zmq.curve_keypair()
        return ClientKey(user, public.decode(), secret.decode(), server.public)

    def admit(self, key: ClientKey, name: str = "", until: float = math.inf) -> None:
        """Lets a user in with a key, until a time, and no more with the former one of its name."""
        self._write(Admitted(key.user, name, key.public, until))

    def _write(self, key: Admitted) -> None:
        text = f"{key.public}\n{key.date}".rstrip() + "\n"
        write_whole(self._users / key.file, text.encode(), mode=0o644)

    def remove(self, user: str, name: str | None = None) -> None:
        """Forgets a user's keys, or one by its name. Raises `KeyProblem` if the user has none."""
        gone = [key for key in self.admitted() if key.user == user and name in (None, key.name)]
        if not gone:
            raise _no_key(user, name)
        for key in gone:
            (self._users / key.file).unlink()
            self._used(key.public).unlink(missing_ok=True)

    def note_use(self, public: str) -> None:
        """A user has come in with a key, now."""
        path = self._used(public)
        with suppress(OSError):  # of a folder that is only read; nothing depends on it
            path.parent.mkdir(exist_ok=True)
            path.touch()

    def last_use(self, public: str) -> int | None:
        """When a user came in with a key, in nanoseconds since the epoch; None if not known."""
        try:
            return self._used(public).stat().st_mtime_ns
        except OSError:
            return None

    def _used(self, public: str) -> Path:
        """A file whose date is that of the key's last use."""
        return self._folder / "used" / _digest(public)

    def become(self, users: dict[str, str]) -> None:
        """Has these users alone from now on, by their public keys: a copy of another store."""
        self._users.mkdir(parents=True, exist_ok=True)
        former = {key.public: key for key in self.admitted()}
        for public, user in users.items():
            if public not in former:
                self._write(Admitted(user, _digest(public), public))
        for public in former.keys() - users.keys():
            (self._users / former[public].file).unlink(missing_ok=True)


class KnownUsers:
    """A store's users, read again when it has changed, or a key's time is over."""

    def __init__(self, store: KeyStore) -> None:
        """Reads nothing yet."""
        self.changes = 0  # another number whenever users may have changed
        self._store = store
        self._stamp: int | None = None
        self._until = math.inf  # when the first key of `_users` goes
        self._users: dict[str, str] = {}

    def look(self) -> dict[str, str]:
        """User names by public key, as they are now. Raises `OSError` of the folder."""
        stamp, now = self._store.stamp(), time.time()
        if stamp != self._stamp or now >= self._until:
            keys = [key for key in self._store.admitted() if now < key.until]
            users = {key.public: key.user for key in keys}
            self._until = min((key.until for key in keys), default=math.inf)
            if users != self._users:
                self._users = users
                self.changes += 1
            # A second change may have the same stamp as long as the clock has not gone on.
            is_settled = time.time_ns() - stamp > SETTLED_NS
            self._stamp = stamp if is_settled else None
        return self._users


def _read_admitted(file: Path) -> Admitted:
    """The key of a file. Raises OSError and ValueError: there is none."""
    named = _FILE.fullmatch(file.stem)
    if named is None or not _is_name(named[1]):
        raise ValueError("its name is no user's")
    public, *until = file.read_text(encoding="ascii").split()
    if not until:
        return Admitted(named[1], named[2] or "", public)
    return Admitted(named[1], named[2] or "", public, datetime.fromisoformat(until[0]).timestamp())


def _digest(public: str) -> str:
    """A public key as part of a file's name."""
    return hashlib.sha256(public.encode()).hexdigest()[:32]


def _no_key(user: str, name: str | None) -> KeyProblem:
    return KeyProblem(_NO_KEY.format(user=user, what=f"a key {name!r}" if name else "a key"))


def _is_name(user: str) -> bool:
    return _USER.fullmatch(user) is not None and user != LOCAL_USER


def _fields(path: Path) -> dict[str, str]:
    """The fields of a file with a key pair. Raises `OSError`, `ValueError`, `TypeError`: it cannot
    be read, or is none. Raises `KeyProblem`: a newer pie_py has written it.
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
    keys.note_use(public)
    return ClientKey(user, public, secret, keys.server_pair().public)


def _secret(text: str) -> str | None:
    if not text.startswith(PREFIX):
        return None
    try:
        data = base64.urlsafe_b64decode(text.removeprefix(PREFIX) + "=")
    except (binascii.Error, ValueError):
        return None
    return z85.encode(data).decode() if len(data) == _SECRET_BYTES else None
