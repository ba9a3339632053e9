"""Messages between real instances, of Python and of Rust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from support.control_programs import BOTH, LANGUAGES, upload
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


@pytest.mark.parametrize(("sender", "receiver"), BOTH)
def test_what_was_pushed_waits_for_a_later_instance(
    client: Client, sender: str, receiver: str
) -> None:
    client.launch(upload(client, sender), ["produce", "later", "5"]).result()
    assert (
        client.launch(upload(client, receiver), ["collect", "later", "5"]).result() == "0 1 2 3 4"
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_subscriber_hears_everything_said_after_it_came(
    client: Client, language: str
) -> None:
    mine = upload(client, language)
    assert client.launch(mine, ["tell", "news", "nobody hears"]).result() == "0"
    listeners = [client.launch(upload(client, other), ["listen", "news"]) for other in LANGUAGES]
    for listener in listeners:
        assert listener.receive() == "listening"
    assert client.launch(mine, ["tell", "news", "one", "two", "äöü", "end"]).result() == "2 2 2 2"
    for listener in listeners:
        listener.send("read")
        assert listener.result() == "one two äöü"


@pytest.mark.parametrize(("sender", "slow"), BOTH)
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


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_message_that_a_killed_instance_had_not_taken_goes_to_another(
    client: Client, language: str
) -> None:
    program = upload(client, language)
    holder = client.launch(program, ["hold", "precious"])
    client.launch(program, ["produce", "precious", "2"]).result()
    assert holder.receive() == "holding"
    client.kill(holder.id)
    assert client.launch(program, ["collect", "precious", "2"]).result() == "0 1"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_pull_that_is_given_up_leaves_the_message_in_its_place(
    client: Client, language: str
) -> None:
    program = upload(client, language)
    holder = client.launch(program, ["hold", "again"])
    client.launch(program, ["produce", "again", "3"]).result()
    assert holder.receive() == "holding"
    holder.send("give it up")
    holder.result()
    assert client.launch(program, ["collect", "again", "3"]).result() == "0 1 2"


def test_traits_that_hold_for_every_model(client: Client) -> None:
    source = b"from inferlet import raw\n"
    source += b"def main(args):\n    return ' '.join(raw.available_traits('test'))\n"
    traits = client.launch(client.upload(source, name="traits")).result().split()
    assert {"runtime", "session", "messaging", "store"} <= set(traits)
