"""The store's file against a dictionary, and what damages it."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import psycopg
import pytest
from hypothesis import given, settings
from support.postgres import Postgres

from pie_control.api.store import entries as module
from pie_control.api.store.database import Database
from pie_control.api.store.entries import (
    Commit,
    Entries,
    Get,
    ListKeys,
    Operation,
    Result,
    StoreUnusable,
)
from pie_control.api.store.postgres import SharedDatabase
from pie_control.errors import ApiError
from pie_py.config.services import StoreConfig

KEYS = ["a", "ab", "abc", "b", "é", "\0", "a\0", "\U0010ffff", "日本"]
keys = st.sampled_from(KEYS)
values = st.binary(max_size=6)
users = st.sampled_from(["ann", "bob"])
commits = st.builds(
    Commit,
    users,
    st.dictionaries(keys, values, max_size=1).map(lambda d: tuple(d.items())),
    st.lists(keys, max_size=1).map(tuple),
    st.dictionaries(keys, values, max_size=3).map(lambda d: tuple(d.items())),
    st.lists(keys, max_size=2, unique=True).map(tuple),
)
lists = st.builds(ListKeys, users, st.just("") | keys, st.just("") | keys, st.integers(1, 4))
gets = st.builds(Get, users, keys)


class Model:
    """What the store should do."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.of: dict[str, dict[str, bytes]] = {"ann": {}, "bob": {}}

    def apply(self, operation: Operation) -> Result | str:
        mine = self.of[operation.user]
        match operation:
            case Get(_, key):
                return mine.get(key, "not-found")
            case ListKeys(_, prefix, last, limit):
                found = (k for k in mine if k.startswith(prefix) and k.encode() > last.encode())
                return sorted(found, key=str.encode)[:limit]
            case Commit(_, expected, absent, writes, deletes):
                if any(mine.get(k) != v for k, v in expected) or any(k in mine for k in absent):
                    return "conflict"
                new = {**mine, **dict(writes)}
                for key in deletes:
                    new.pop(key, None)
                before, after = _usage(mine), _usage(new)
                limits = (self.config.keys, self.config.bytes)
                if any(
                    a > limit and a > b for a, b, limit in zip(after, before, limits, strict=True)
                ):
                    return "limit-exceeded"
                self.of[operation.user] = new
        return None


def _usage(of: dict[str, bytes]) -> tuple[int, int]:
    return len(of), sum(len(k.encode()) + len(v) for k, v in of.items())


def told(result: Result) -> object:
    return result.code if isinstance(result, ApiError) else result


Opens = Callable[[StoreConfig], Entries]
Batches = list[list[Operation]]
batches_of_any = st.lists(
    st.lists(st.one_of(commits, commits, lists, gets), max_size=8), max_size=6
)


@settings(max_examples=60)
@given(batches_of_any)
def test_it_behaves_as_a_dictionary_of_each_user(batches: Batches) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.sqlite3")
        behaves(lambda config: Database(path, config), batches)


@settings(max_examples=10)
@given(batches_of_any)
def test_a_shared_database_behaves_the_same(postgres: Postgres, batches: Batches) -> None:
    with postgres.database() as address:
        behaves(
            lambda config: SharedDatabase(config.model_copy(update={"database": address})), batches
        )


def behaves(opened: Opens, batches: Batches) -> None:
    config = StoreConfig(keys=4, bytes=30)
    model = Model(config)
    database = opened(config)
    for batch in batches:
        expected = [model.apply(operation) for operation in batch]
        assert [told(result) for result in database.run(batch)] == expected
    database.close()
    database = opened(config)  # all of it is still there
    for user, of in model.of.items():
        assert database.run([ListKeys(user, "", "", 1000)]) == [sorted(of, key=str.encode)]
        for key, value in of.items():
            assert database.run([Get(user, key)]) == [value]
        row = database.execute('SELECT keys, bytes FROM usage WHERE "user" = ?', (user,))
        assert (row.fetchone() or (0, 0)) == _usage(of)
    database.close()


def put(key: str, value: bytes) -> Commit:
    return Commit("ann", (), (), ((key, value),), ())


def test_large_results_come_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 250)
    database = Database(tmp_path / "s", StoreConfig())
    assert database.run([put("k", b"x" * 100)]) == [None]
    assert database.run([Get("ann", "k")] * 5) == [b"x" * 100] * 3
    database.close()


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    database = Database(tmp_path / "s", StoreConfig())
    database.run([put("k", b"v")])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("s", "s-shm", "s-wal"), 0o600)
    database.close()


def test_two_servers_may_share_the_file(tmp_path: Path) -> None:
    shared_by_two(lambda config: Database(tmp_path / "s", config))


def test_two_nodes_share_the_database(address: str) -> None:
    shared_by_two(lambda config: SharedDatabase(config.model_copy(update={"database": address})))


def shared_by_two(opened: Opens) -> None:
    one, two = (opened(StoreConfig()) for _ in range(2))
    for count, database in enumerate((one, two) * 5):
        old, new = str(count).encode(), str(count + 1).encode()
        expected = (("n", old),) if count else ()
        absent = () if count else ("n",)
        commit = Commit("ann", expected, absent, (("n", new),), ())
        assert database.run([commit]) == [None]
        (again,) = database.run([commit])
        assert told(again) == "conflict"
    one.close()
    two.close()


@pytest.mark.parametrize("damage", ["head", "middle", "text"])
def test_a_damaged_file_is_an_error_and_stays_as_it_is(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.sqlite3"
    database = Database(path, StoreConfig())
    database.run([put(str(n), os.urandom(500)) for n in range(200)])
    database.close()
    data = bytearray(path.read_bytes())
    if damage == "head":
        data[:40] = bytes(40)
    elif damage == "middle":
        data[4096 * 3 : 4096 * 6] = os.urandom(4096 * 3)
    else:
        data = bytearray(b"this was a database once\n" * 100)
    path.write_bytes(data)
    with pytest.raises(StoreUnusable, match=r"store\.sqlite3 is damaged: .*left as it is"):
        Database(path, StoreConfig())
    assert path.read_bytes() == data


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match="no store of pie_py"):
        Database(path, StoreConfig())
    assert path.read_bytes() == before
    path.unlink()
    Database(path, StoreConfig()).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(StoreUnusable, match="format 99"):
        Database(path, StoreConfig())
    with pytest.raises(StoreUnusable, match="cannot be opened"):
        Database(tmp_path, StoreConfig())


def all_of(database: Entries, operations: list[Operation]) -> list[Result]:
    """The results as the service has them, which runs again what is not done."""
    results: list[Result] = []
    while len(results) < len(operations):
        results += database.run(operations[len(results) :])
    return results


def test_a_disk_that_is_full_fails_the_operation_and_neither_others_nor_the_store(
    tmp_path: Path,
) -> None:
    database = Database(tmp_path / "s", StoreConfig())
    database.run([put("old", b"kept")])
    database._sql.execute("PRAGMA max_page_count = 10")
    huge = put("new", b"x" * 10**6)
    results = all_of(database, [put("a", b""), huge, put("small", b"y"), Get("ann", "old")])
    assert [told(result) for result in results] == [None, "internal", None, b"kept"]
    assert "full" in str(results[1])
    database._sql.execute("PRAGMA max_page_count = 100000")
    assert database.run([Get("ann", "old"), put("new", b"x")]) == [b"kept", None]
    assert database.run([Get("ann", "small")]) == [b"y"]
    database.close()


def test_a_key_that_is_no_text_any_more_fails_the_operation_only(tmp_path: Path) -> None:
    database = Database(tmp_path / "s", StoreConfig())
    database.run([put("a", b"1")])
    database._sql.execute("UPDATE entries SET key = x'ff'")
    database._sql.execute("INSERT INTO entries (user, key, value) VALUES ('ann', x'61ff', x'')")
    results = all_of(database, [put("b", b"2"), ListKeys("ann", "", "", 10), Get("ann", "b")])
    assert [told(result) for result in results] == [None, "internal", b"2"]
    database.close()


WRITER = """
import sys
from pathlib import Path
from pie_control.api.store.database import Database
from pie_control.api.store.entries import Commit
from pie_py.config.services import StoreConfig
database = Database(Path(sys.argv[1]), StoreConfig())
n = 0
while True:
    n += 1
    text = str(n).encode()
    assert database.run([Commit("ann", (), (), (("a", text), ("b", text)), ())]) == [None]
    print(n, flush=True)
"""


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        answered = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        answered += [int(line) for line in process.stdout.read().split()]
        process.wait()
        database = Database(path, StoreConfig())
        one, other = database.run([Get("ann", "a"), Get("ann", "b")])
        assert one == other  # both or neither
        assert isinstance(one, bytes)
        assert int(one) in (answered[-1], answered[-1] + 1)
        database.close()


def test_a_damaged_file_is_not_touched_by_the_journal_of_a_killed_server(tmp_path: Path) -> None:
    path = tmp_path / "s"
    database = Database(path, StoreConfig())
    database.run([put(str(n), os.urandom(500)) for n in range(200)])
    database.close()
    process = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 20))
    files = {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.name.endswith("-shm")}
    assert "s-wal" in files
    with pytest.raises(StoreUnusable, match="damaged"):
        Database(path, StoreConfig())
    for name, data in files.items():
        assert (tmp_path / name).read_bytes() == data


# PostgreSQL


def test_nothing_acknowledged_is_lost_while_postgresql_is_killed(
    address: str, postgres: Postgres
) -> None:
    """Two nodes count in turns of their own; each number is taken once, whatever they are told."""
    config = StoreConfig(database=address)
    stop, taken = threading.Event(), []

    def count(node: str) -> None:
        database = SharedDatabase(config)
        while not stop.is_set():
            (last,) = database.run([Get("ann", "n")])
            number = int(last) + 1 if isinstance(last, bytes) else 1
            expected = (("n", last),) if isinstance(last, bytes) else ()
            absent = () if isinstance(last, bytes) else ("n",)
            new = (("n", str(number).encode()), (f"{number:06}", node.encode()))
            (result,) = database.run([Commit("ann", expected, absent, new, ())])
            if result is None:
                taken.append((number, node))
            else:
                assert told(result) in ("conflict", "internal")
        database.close()

    with ThreadPoolExecutor(2) as pool:
        counts = [pool.submit(count, node) for node in ("n1", "n2")]
        for _ in range(2):
            enough = len(taken) + 20
            while len(taken) < enough and not any(each.done() for each in counts):
                time.sleep(0.01)
            postgres.kill()
            postgres.start()
        stop.set()
        for each in counts:
            each.result()
    database = SharedDatabase(config)
    assert len({number for number, _ in taken}) == len(taken) > 40
    for number, node in taken:
        assert database.run([Get("ann", f"{number:06}")]) == [node.encode()]
    database.close()


def test_postgresql_that_is_away_is_told(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pie_control.api.store.postgres.PATIENCE_SECONDS", 0.1)
    with postgres.database() as address:
        database = SharedDatabase(StoreConfig(database=address))
        database.run([put("k", b"v")])
        postgres.kill()
        (result,) = database.run([Get("ann", "k")])
        with pytest.raises(StoreUnusable, match=r"^store.database cannot be used: [^\n]*$"):
            SharedDatabase(StoreConfig(database=address))
        postgres.start()
        assert told(result) == "internal"
        assert "its database is away" in str(result)
        assert database.run([Get("ann", "k")]) == [b"v"]
        database.close()


def test_other_databases_are_left_alone(address: str) -> None:
    config = StoreConfig(database=address)
    with psycopg.connect(config.database, autocommit=True) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
        with pytest.raises(StoreUnusable, match=r"another program \(recipes\)"):
            SharedDatabase(config)
        other.execute("DROP TABLE recipes")
        SharedDatabase(config).close()
        other.execute("UPDATE pie_py_store SET format = 99")
    with pytest.raises(StoreUnusable, match="format 99"):
        SharedDatabase(config)
    for wrong, words in (("postgresql://a:b@/c", "leave the password out"), ("x", "missing")):
        with pytest.raises(StoreUnusable, match=words):
            SharedDatabase(StoreConfig(database=wrong))
