"""A real PostgreSQL on a Unix socket in a temporary folder."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psycopg
import pytest

USER = "postgres"


def programs() -> Path | None:
    """The folder of PostgreSQL's programs; None if it is not installed."""
    found = shutil.which("initdb") or max(
        map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=""
    )
    return Path(found).parent if found else None


class Postgres:
    """A server of one test module, which may be killed and started again. To be used in a `with`;
    without PostgreSQL on this machine, that skips.
    """

    def __init__(self) -> None:
        self._programs = programs()
        # PostgreSQL does not run as root.
        self._as = USER if os.geteuid() == 0 else None
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        if self._programs is None:
            pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
        self._folder = Path(tempfile.mkdtemp(prefix="pie-pg-"))
        if self._as is not None:
            shutil.chown(self._folder, self._as)
        self._data = str(self._folder / "data")
        self._run("initdb", "-D", self._data, "-U", USER, "-A", "trust", "-N", "-E", "UTF8")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    @property
    def socket(self) -> str:
        """The path of the socket that it listens on."""
        return f"{self._folder}/.s.PGSQL.5432"

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        # A test kills processes, not the machine: nothing need be on disk.
        options = f"-k {self._folder} -c listen_addresses='' -c fsync=off"
        self._run(
            "pg_ctl", "-D", self._data, "-w", "-o", options, "-l", f"{self._data}.log", "start"
        )

    def kill(self) -> None:
        """Ends it at once, with its connections; what was not committed is gone."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "stop")

    @contextmanager
    def database(self) -> Iterator[str]:
        """An empty database for as long as the context: its address."""
        name = f"d{next(self._numbers)}"
        address = f"postgresql://{USER}@/{{}}?host={self._folder}"
        with psycopg.connect(address.format(USER), autocommit=True) as sql:
            sql.execute(f"CREATE DATABASE {name}".encode())
        yield address.format(name)

    def _run(self, program: str, *args: str) -> None:
        assert self._programs is not None
        command = [str(self._programs / program), *args]
        done = subprocess.run(
            command, user=self._as, cwd=self._folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
