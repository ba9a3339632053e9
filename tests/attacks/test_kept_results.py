"""Results of detached instances survive the server, within bounds; a server that is told to stop
lets its instances end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio
from support.rig import Rig
from support.servers import Server

from pie_control.instances import result_store
from pie_control.instances.instance import Instance, InstanceState
from pie_control.instances.result_store import ResultStore
from pie_py.client.errors import InferletFailed, RpcError
from pie_py.config.kept_files import BLOCK
from pie_py.config.server import ServerConfig
from pie_py.testing.script import replaying

ROOT = Path(__file__).parents[2]
DAY = 86400.0
ENDS = """
from inferlet import session

async def main(args):
    if args[0] == "waits":
        return await session.receive()
    if args[0] == "fails":
        raise ValueError("no such thing")
    return "done: " + args[0]
"""


def test_a_server_that_starts_again_has_them(short_folder: Path) -> None:
    settings: dict[str, Any] = {**replaying(short_folder), "spare_instances": 2, "stop_seconds": 0}
    with Server(short_folder, **settings) as server, server.client() as client:
        program = client.upload(ENDS.encode(), "ends")
        right, wrong, waits = (
            client.launch(program, [what], detached=True).id for what in ("x", "fails", "waits")
        )
        attached = client.launch(program, ["y"])
        assert client.result(right) == "done: x"
        assert attached.result(60) == "done: y"
        with pytest.raises(InferletFailed):
            client.result(wrong)
    with Server(short_folder, **settings) as server, server.client() as client:
        assert client.result(right) == "done: x"
        assert client.attach(right).result(10) == "done: x"
        with pytest.raises(InferletFailed, match="no such thing"):
            client.result(wrong)
        with pytest.raises(InferletFailed, match="the server stops"):
            client.result(waits)
        with pytest.raises(RpcError, match="not-found"):
            client.result(attached.id)


class Kept:
    """What is kept of instances of a rig."""

    def __init__(self, folder: Path, seconds: float = DAY) -> None:
        self.rig = Rig(ServerConfig(max_instances=10_000))
        self.results = ResultStore(folder, seconds, self.rig.clock.date_ns)
        self.rig.registry.on_end.append(self.results.on_end)

    def end(self, text: str, user: str = "ann", *, detached: bool = True) -> Instance:
        instance = self.rig.launch(user)
        if detached:
            self.results.follow(instance)
        self.rig.clock.seconds += 1.0
        self.rig.registry.end(instance, InstanceState.FINISHED, text)
        return instance

    def write(self) -> None:
        """As a server that stops at once."""

        async def run() -> None:
            with trio.move_on_after(0.2):
                await self.results.run()

        trio.run(run)

    def text(self, instance: Instance, user: str | None = "ann") -> str | None:
        found = self.results.find(instance.id, user)
        return None if found is None else found.text


def test_only_their_user_sees_them_and_only_those_of_detached_ones_are_kept(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    one, other = kept.end("mine"), kept.end("read", detached=False)
    kept.write()
    assert kept.text(one) == kept.text(one, None) == "mine"
    assert kept.text(one, "mallory") is None
    assert kept.text(other) is None
    [file] = tmp_path.glob("*.json")
    assert file.stat().st_mode & 0o077 == 0


def test_they_go_with_their_age(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 100.0)
    old = kept.end("old")
    kept.write()
    kept.rig.clock.seconds += 99
    assert kept.text(old) == "old"
    kept.rig.clock.seconds += 2
    assert kept.text(old) is None
    kept.end("new")
    kept.write()
    assert len(list(tmp_path.glob("*.json"))) == 1
    kept.rig.clock.seconds -= 10_000.0  # the machine's clock jumps
    kept.end("from before")
    kept.write()


def test_a_user_has_so_many_and_no_more_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_store, "MOST_OF_USER", 5)
    monkeypatch.setattr(result_store, "BYTES_OF_USER", 6 * BLOCK)
    kept = Kept(tmp_path)
    victims = kept.end("victim's", "victim")
    many = [kept.end(f"{number}", "mallory") for number in range(20)]
    kept.write()
    assert [kept.text(i, "mallory") for i in many] == [None] * 15 + [f"{n}" for n in range(15, 20)]
    large = kept.end("\0" * (BLOCK // 2), "mallory")  # six bytes of the disk each
    kept.end("y" * (3 * BLOCK), "mallory")
    huge = kept.end("z" * (6 * BLOCK), "eve")
    kept.write()
    assert kept.text(large, "mallory") is None
    assert kept.text(huge, "eve") is None
    assert kept.text(victims, "victim") == "victim's"
    again = Kept(tmp_path)  # another server on the folder counts what is there
    again.rig.clock.seconds = kept.rig.clock.seconds
    [again.end(f"{number}", "mallory") for number in range(5)]
    again.write()
    assert len(list(tmp_path.glob("*.json"))) == 5 + 1


def test_what_the_documentation_promises() -> None:
    promised = f"the newest {result_store.MOST_OF_USER} and {result_store.BYTES_OF_USER >> 20} MiB"
    assert f"{promised} of each user" in (ROOT / "docs/safety.md").read_text(encoding="utf-8")
    assert (result_store.MOST_OF_USER, result_store.BYTES_OF_USER) == (500, 16 << 20)


def test_nothing_is_kept_where_the_operator_wants_it_so(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "none", 0.0)
    one = kept.end("x")
    kept.write()
    assert kept.text(one) is None
    assert not (tmp_path / "none").exists()


def test_a_damaged_file_is_no_result(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    one = kept.end("x")
    kept.write()
    [file] = tmp_path.glob("*.json")
    file.write_text("{")
    assert kept.text(one) is None
    other = kept.end("y")
    kept.write()
    assert kept.text(other) == "y"


WAITS = """
from inferlet import session

async def main(args):
    session.send("ready")
    return await session.receive()
"""


def stop(server: Server) -> None:
    """Asks it to stop, and waits until it has begun with that."""
    server.ask_to_stop()
    while "no more launches" not in server.log:
        time.sleep(0.01)


def test_instances_end_by_themselves_until_the_second_signal(short_folder: Path) -> None:
    settings = replaying(short_folder)
    with Server(short_folder, **settings, stop_seconds=600) as server, server.client() as client:
        program = client.upload(WAITS.encode(), "waits")
        instance, other = client.launch(program), client.launch(program)
        assert [one.receive(60) for one in (instance, other)] == ["ready"] * 2
        stop(server)
        with pytest.raises(RpcError, match="busy: the server is stopping"):
            client.launch(program)
        instance.send("done")
        assert instance.result(60) == "done"
        assert server.process.poll() is None
        server.ask_to_stop()
        server.process.wait(60)
