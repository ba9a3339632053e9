"""Guests that behave and guests that do not, each at a real server."""

from __future__ import annotations

import json

import pytest
from support.rust_components import Run, rust_component

from pie_py.client.errors import ClientError
from pie_py.client.sync import Client


def test_echo_of_text_and_bytes(client: Client) -> None:
    guests = client.upload(rust_component("guests"))
    texts = client.launch(guests, ["echo"])
    for message in ("hello", "é😀\n" * 1000, "x" * 100_000):
        texts.send(message)
        assert texts.receive() == message
    texts.send("")
    assert texts.result() == "3 messages"
    blobs = client.launch(guests, ["echo-blobs"])
    data = bytes(range(256)) * 100
    blobs.send(data)
    assert blobs.receive() == data
    blobs.send(b"")
    assert blobs.result() == "1 blobs"


def test_first_message_and_sleep(run: Run) -> None:
    assert run("guests", "first-message") == ("here", "")
    assert run("guests", "sleep", "5") == ("", "")


def test_what_is_leaked_comes_back_when_the_instance_ends(run: Run) -> None:
    for _ in range(5):
        stats = json.loads(run("guests", "leak", "200")[1])
        assert stats["kv_pages_mine"] == 200


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["fail"], "^failed on purpose$"),
        (["usage"], "^usage: give another argument$"),
        (["deadlock"], "a deadlock$"),
        (["trap"], "^trap: .*aborted"),
        (["recurse"], "^trap: .*stack"),
        (["recurse-with-frames"], "^trap: out of bounds .*deeper"),
        (["no-such-mode"], "^usage: "),
    ],
)
def test_errors_reach_the_client(run: Run, arguments: list[str], reason: str) -> None:
    with pytest.raises(ClientError, match=reason):
        run("guests", *arguments)


def test_guessed_handles_are_refused(client: Client) -> None:
    guests = client.upload(rust_component("guests"))
    owner = client.launch(guests, ["hold-pages", "20"])
    assert owner.receive() == "holding"
    assert client.launch(guests, ["foreign-handle"]).result() == "every guess was refused"
    owner.send("go on")
    assert owner.result() == str([0] * 20)


def test_a_panic_is_in_the_log(client: Client) -> None:
    instance = client.launch(client.upload(rust_component("guests")), ["panic"])
    with pytest.raises(ClientError, match="aborted"):
        instance.result()
    lines = instance.logs()["lines"]
    assert any("on purpose" in str(line) and "bad.rs" in str(line) for line in lines), lines


@pytest.mark.parametrize("mode", ["spin", "flood"])
def test_endless_ones_can_be_killed(client: Client, run: Run, mode: str) -> None:
    instance = client.launch(client.upload(rust_component("guests")), [mode])
    assert run("guests", "first-message") == ("here", "")  # others go on meanwhile
    assert client.kill(instance.id)
    with pytest.raises(ClientError, match="killed"):
        instance.result()
