"""Messages between a client and a real instance."""

from __future__ import annotations

from pathlib import Path

from support.servers import Server

from pie_py.client.sync import Client


def test_a_receive_that_is_given_up_leaves_its_message(client: Client, guests: Path) -> None:
    instance = client.launch(client.upload(guests / "give_up.py"))
    for message in ("one", "two"):
        instance.send(message)
    assert instance.result() == "one two"


def test_attaching_again_goes_on_where_the_last_reader_left(server: Server, guests: Path) -> None:
    source = "async def main(args):\n    from inferlet import session\n"
    source += "    for i in range(9):\n        session.send(str(i))\n"
    source += "    await session.receive()\n"
    with server.client() as client:
        instance = client.launch(client.upload(source.encode(), name="nine"))
        assert [instance.receive() for _ in range(3)] == ["0", "1", "2"]
        instance.detach()
        again = client.attach(instance.id)
        assert [again.receive() for _ in range(6)] == ["3", "4", "5", "6", "7", "8"]
        again.cancel()
