"""Messages between real instances, of Python and of Rust. The rules are those of
`control_traits/test_bus.py` and `conformance/cases/messaging.toml`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from support.control_programs import LANGUAGES, upload
from support.servers import Server

from pie_py.client.sync import Client


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected
        assert connected.instances() == []


def test_work_is_done_once_by_workers_in_both_languages(client: Client) -> None:
    python, rust = (upload(client, language) for language in LANGUAGES)
    workers = [
        client.launch(program, ["worker", "jobs", "results"]) for program in (python, rust) * 3
    ]
    collector = client.launch(rust, ["collect", "results", "400"])
    for program in (python, rust):
        client.launch(program, ["produce", "jobs", "200"]).result()
    assert Counter(collector.result().split()) == Counter(map(str, [*range(200)] * 2))
    stop = client.launch(client.upload(STOP, name="stop"), ["jobs", "6"])
    assert stop.result() == ""
    assert sum(int(worker.result()) for worker in workers) == 400


STOP = b"""
from inferlet import messaging

async def main(args):
    for _ in range(int(args[1])):
        await messaging.push(args[0], "stop")
"""


@pytest.mark.parametrize(("sender", "slow"), [LANGUAGES, LANGUAGES[::-1]])
def test_a_slow_subscriber_makes_the_sender_wait_and_misses_nothing(
    client: Client, sender: str, slow: str
) -> None:
    listener = client.launch(upload(client, slow), ["listen", "much"])
    assert listener.receive() == "listening"
    flood = client.launch(upload(client, sender), ["flood", "much"])
    full = flood.receive()
    assert isinstance(full, str)
    assert full.startswith("would-block: ")
    assert listener.id in full
    listener.send("read")
    sent = int(flood.result())
    assert sent == 8  # of 2 MiB each, and a mailbox holds 16
    assert listener.result() == " ".join(["xxxxxxxxx"] * sent)
