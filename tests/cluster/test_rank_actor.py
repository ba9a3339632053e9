"""What keeps the ranks of a worker on another machine: who may tell it what, and what it tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zmq

from pie_cluster.machines.settings import Machine, Token
from pie_cluster.ranks.actor import RankActor
from pie_cluster.wire.sockets import member_dealer
from pie_py.config.keys import KeyPair


def new_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def test_members_alone_start_ranks_and_their_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = new_pair()
    token = Token(
        gateway="tcp://127.0.0.1:1",
        directory="tcp://127.0.0.1:1",
        ray="127.0.0.1:1",
        ray_token="",
        member_public=pair.public,
        member_secret=pair.secret,
        versions={},
        server={},
    )
    token.write(tmp_path / "token.json")
    machine = Machine(role="nodes", host="127.0.0.1")
    machine.write(tmp_path)
    monkeypatch.setenv("PIE_PY_CLUSTER_FOLDER", str(tmp_path))
    actor = RankActor([3], f"file://{tmp_path}/meeting")
    with zmq.Context() as context:
        for stranger in (KeyPair(pair.public, new_pair().secret), new_pair(), None):
            with member_dealer(context, actor.endpoint(), stranger) as dealer:
                assert not dealer.poll(500, zmq.POLLOUT)
        with member_dealer(context, actor.endpoint(), pair) as dealer:
            assert dealer.poll(10_000, zmq.POLLOUT)
            dealer.send(json.dumps({"models": []}).encode())  # no rank can serve none
            assert actor.failure().startswith("rank 3 has ended with status")
