"""Messages between a client and a real instance."""

from __future__ import annotations

from pathlib import Path

from servers import Server


def test_a_receive_that_is_given_up_leaves_its_message(server: Server, guests: Path) -> None:
    with server.client() as client:
        instance = client.launch(client.upload(guests / "give_up.py"))
        for message in ("one", "two"):
            instance.send(message)
        assert instance.result() == "one two"
