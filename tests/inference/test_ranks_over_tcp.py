"""Ranks behind a host, as on another machine: they say what one says, and end with the others."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from support.checkpoints import make_llama
from support.child_processes import ChildProcess
from support.clusters import wait_for
from support.workers import SECONDS, Worker, check_same

from pie_cluster.wire.ranks import (
    Beat,
    Lives,
    Lost,
    Pass,
    Start,
    ToFirst,
    ToHost,
    decode_to_first,
    encode,
)
from pie_cluster.wire.sockets import member_dealer
from pie_py.config.keys import KeyPair
from pie_py.wire.plan import Failed, Hello

pytestmark = pytest.mark.slow

ADDRESS = "127.0.0.1"


class Host(ChildProcess):
    """A host of ranks with keys, as a cluster's machine has it."""

    def __init__(self, folder: Path, endpoint: str = f"tcp://{ADDRESS}:*") -> None:
        """The members' keys are made where there are none."""
        self.keys = folder / "members.json"
        if not self.keys.exists():
            public, secret = zmq.curve_keypair()
            text = json.dumps({"public": public.decode(), "secret": secret.decode()})
            self.keys.write_text(text)
        config = {
            "endpoint": endpoint,
            "address": ADDRESS,
            "folder": str(folder),
            "node": "n1",
            "keys": str(self.keys),
        }
        super().__init__("pie_cluster.ranks.host", config, folder / "stderr")

    @property
    def pair(self) -> KeyPair:
        return KeyPair(**json.loads(self.keys.read_text()))

    @property
    def further(self) -> dict[str, Any]:
        """What a worker is told of it."""
        return {"address": ADDRESS, "hosts": [self.endpoint], "keys": str(self.keys)}

    @property
    def ranks(self) -> list[psutil.Process]:
        """Its processes."""
        found: list[psutil.Process] = psutil.Process(self.process.pid).children()
        return found


class Speaker:
    """Says what a first rank says."""

    def __init__(self, host: Host) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = member_dealer(self._context, host.endpoint, host.pair)

    def close(self) -> None:
        self._context.destroy(0)

    def ask(self, message: ToHost) -> ToFirst:
        self._socket.send(encode(message))
        return self.hear()

    def say(self, message: ToHost) -> None:
        self._socket.send(encode(message))

    def hear(self) -> ToFirst:
        assert self._socket.poll(10_000)
        return decode_to_first(self._socket.recv())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="pie-") as folder, Host(Path(folder)) as host:
        yield host


def test_ranks_of_another_machine_say_what_one_says(model: Path, host: Host) -> None:
    """And after a rank was killed, those of the next worker do."""
    with closing(Worker([model], 1)) as one:
        with closing(Worker([model], 2, host.further)) as two:
            check_same(one, two, "llama")
            [rank] = host.ranks
            rank.kill()
            assert two.process.wait(SECONDS) == 1
        wait_for(lambda: not host.ranks, 5)
        with closing(Worker([model], 2, host.further)) as two:
            check_same(one, two, "llama")
            assert two.stop() == 0
            wait_for(lambda: not host.ranks, 5)


def test_a_worker_and_its_ranks_end_with_the_host(model: Path, host: Host) -> None:
    with closing(Worker([model], 2, host.further)) as worker:
        assert isinstance(worker.first, Hello)
        [rank] = host.ranks
        host.process.kill()
        assert worker.process.wait(5) == 1
        wait_for(lambda: not rank.is_running(), 5)


def test_ranks_of_a_worker_that_was_killed_give_way_to_the_next_ones(
    model: Path, host: Host
) -> None:
    with closing(Worker([model], 2, host.further)) as worker:
        [rank] = host.ranks
        worker.process.kill()
    with closing(Worker([model], 2, host.further)) as worker:
        assert isinstance(worker.first, Hello)
        assert not rank.is_running()
        [rank] = host.ranks
        host.stop()
        wait_for(lambda: not rank.is_running(), 5)


def test_a_machine_that_is_not_reached_is_told(model: Path, host: Host) -> None:
    host.stop()
    with closing(Worker([model], 2, host.further)) as worker:
        assert isinstance(worker.first, Failed)
        assert f"no host of ranks answers at {host.endpoint}" in worker.first.reason
        assert worker.process.wait(SECONDS) == 1


def test_a_missing_message_ends_the_ranks(host: Host) -> None:
    """One that was lost with a connection that came back: all others would wait for it."""
    with closing(Speaker(host)) as first:
        assert first.ask(Start([], "{}", "")) == Lives()
        first.say(Pass(b"one"))
        assert first.ask(Beat(1)) == Lives()
        assert first.ask(Beat(3)) == Lost("of 3 messages 1 have come")
        assert first.ask(Beat(3)) == Lost("its ranks have ended")
        assert first.ask(Start([], "{}", "")) == Lives()
        with closing(Speaker(host)) as second:
            assert second.ask(Start([], "{}", "")) == Lives()
            assert first.hear() == Lost("another worker has come")
            assert second.ask(Beat(0)) == Lives()


def test_members_alone_are_let_in(host: Host) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    assert is_let_in(host, host.pair)
    assert not is_let_in(host, KeyPair(public, secret))
    assert not is_let_in(host, None)


def is_let_in(host: Host, pair: KeyPair | None) -> bool:
    """Whether a connection is made by who knows the host's public key and has such a pair."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        if pair is not None:
            dealer.setsockopt(zmq.CURVE_SERVERKEY, host.pair.public.encode())
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
            dealer.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
        dealer.connect(host.endpoint)
        return bool(dealer.poll(1000, zmq.POLLOUT))
