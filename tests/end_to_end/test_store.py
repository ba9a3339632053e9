"""The store through real instances and real servers, killed ones too."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.control_programs import LANGUAGES, upload
from support.servers import Server

from pie_py.client.sync import Client
from pie_py.testing.script import replaying


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected
        assert connected.instances() == []


def test_instances_that_count_together_lose_nothing(client: Client) -> None:
    counters = [
        client.launch(upload(client, language), ["count", "together", "40"])
        for language in LANGUAGES * 2
    ]
    assert max(int(counter.result()) for counter in counters) == 160
    assert client.launch(upload(client, "rust"), ["get", "together"]).result() == "160"


@pytest.mark.parametrize("language", LANGUAGES)
def test_transactions(client: Client, language: str) -> None:
    assert client.launch(upload(client, language), ["transact"]).result() == "t/b t/c nothing"


@pytest.mark.parametrize("language", LANGUAGES)
def test_more_bytes_at_once_than_may_be_under_way(client: Client, language: str) -> None:
    assert client.launch(upload(client, language), ["bulk", "7"]).result() == "as it was"


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_keys_of_a_prefix(client: Client, language: str) -> None:
    program = upload(client, language)
    client.launch(program, ["fill", f"{language}/", "2300"]).result()
    client.launch(program, ["put", f"{language}0", "not among them"]).result()
    keys = client.launch(program, ["keys", f"{language}/"]).result().split()
    assert keys == [f"{language}/{n:05}" for n in range(2300)]
    assert client.launch(program, ["get", "never set"]).result() == "nothing"


def test_a_server_that_is_killed_and_its_quota(short_folder: Path) -> None:
    settings = {**replaying(short_folder), "store": {"keys": 2, "bytes": 1000}}
    with Server(short_folder, **settings) as server, server.client() as client:
        program = upload(client, "python")
        assert client.launch(program, ["put", "a", "ä" * 100]).result() == ""
        assert client.launch(program, ["count", "n", "3"]).result() == "3"
        told = client.launch(program, ["put", "b", ""]).result()
        assert told.startswith("limit-exceeded: ")
        assert "store.keys" in told
        told = client.launch(program, ["put", "a", "x" * 999]).result()
        assert told.startswith("limit-exceeded: ")
        assert "store.bytes" in told
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    with Server(short_folder, **settings) as server, server.client() as client:
        program = upload(client, "python")
        assert client.launch(program, ["get", "a"]).result() == "ä" * 100
        assert client.launch(program, ["count", "n", "1"]).result() == "4"
    path = short_folder / "data" / "store.sqlite3"
    data = b"\0" * 100 + path.read_bytes()[100:]
    path.write_bytes(data)
    server = Server(short_folder, **settings)
    assert server.error is not None
    assert f"{path} is damaged" in server.error
    assert server.process.wait(20) == 1
    assert path.read_bytes() == data
