"""The directory in a gateway's process: the numbers of lives, also after a restart."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest
from cluster.messages import join, report
from support.child_processes import ChildProcess
from support.clusters import SERVER, wait_for

from pie_cluster.config import MemberConfig
from pie_cluster.directory.asking import Directory, DirectoryAway, DirectoryRefuses
from pie_cluster.machines.token import free_ports
from pie_cluster.wire.messages import Report
from pie_py.client.errors import ClientError, ServerUnreachable
from pie_py.client.sync import Client


def told(directory: Directory, message: Report) -> str:
    """Of which kind the answer is."""
    kind: str = directory.ask("report", **msgspec.structs.asdict(message))["type"]
    return kind


def started(folder: Path, endpoint: str = "tcp://127.0.0.1:*") -> ChildProcess:
    """A gateway, with the directory of what a folder keeps."""
    member = MemberConfig(folder=folder)
    config = {
        **SERVER,
        "endpoint": endpoint,
        "data_folder": str(folder / "data"),
        "extension": asdict(member.extension()),
    }
    return ChildProcess("pie_cluster.gateway", config, folder / "gateway.log")


@contextmanager
def running(folder: Path) -> Iterator[Directory]:
    """A gateway's, for members."""
    with started(folder) as gateway:
        yield Directory(gateway.endpoint, None)


def begun(directory: Directory, node: str, reason: str = "") -> int:
    """The number of its new life."""
    number: int = directory.ask("begin", node=node, reason=reason)
    return number


def test_a_life_ends_as_another_one_begins_also_for_a_directory_that_is_started_again(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as directory:
        for node in ("n1", "n2"):
            assert begun(directory, node) == 1
            assert [told(directory, one(node)) for one in (join, report)] == ["renewed"] * 2
        assert begun(directory, "n2", "it was killed") == 2
        assert [told(directory, one("n2")) for one in (join, report)] == ["fenced"] * 2
    with running(tmp_path) as directory:
        answers = [told(directory, report(node)) for node in ("n1", "n2")]
        assert answers == ["join-again", "fenced"]
        assert told(directory, join("n1")) == "renewed"
        assert told(directory, join("n2")) == "fenced"
        assert told(directory, join("n2", 2)) == "renewed"


def test_a_drained_node_has_no_other_life_also_for_a_directory_that_is_started_again(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as directory:
        for node in ("n1", "n2", "n3", "n4"):
            begun(directory, node)
            told(directory, join(node))
        for node, again in (("n1", False), ("n2", False), ("n3", False), ("n2", True)):
            directory.ask("drain", node=node, seconds=60, again=again)
        with pytest.raises(DirectoryRefuses, match="n3 is drained and has no other life"):
            begun(directory, "n3")  # it has ended before it was empty
        assert [node.node for node in directory.nodes()] == ["n1", "n2", "n4"]
    with running(tmp_path) as directory:
        with pytest.raises(DirectoryRefuses, match="n1 is drained and has no other life"):
            begun(directory, "n1")
        assert [begun(directory, node) for node in ("n2", "n4")] == [2, 2]


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_client_finds_a_gateway_again_that_was_away_for_longer_than_its_patience(
    tmp_path: Path, is_orderly: bool
) -> None:
    gateway = f"tcp://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    former = started(tmp_path, gateway)
    with former, Client(gateway, patience=0.5) as client:
        assert client.programs() == []
        if is_orderly:
            former.ask_to_stop()
        else:
            former.process.kill()
        former.process.wait()
        for _ in range(2):
            with pytest.raises(ServerUnreachable, match="`pie-py cluster up` on its head"):
                client.programs()
        with started(tmp_path, gateway):
            wait_for(lambda: answered(client))


def answered(client: Client) -> bool:
    try:
        return client.programs() == []
    except ClientError:
        return False


def test_a_head_that_is_down_is_started_by_a_command_for_clusters() -> None:
    gateway = f"tcp://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    with pytest.raises(DirectoryAway, match="`pie-py cluster up` there starts it") as away:
        Directory(gateway, None).nodes()
    assert "serve" not in str(away.value)


def test_a_signal_ends_one_who_asks_as_it_wants() -> None:
    def end(*_: object) -> None:
        sys.exit(143)

    former = signal.signal(signal.SIGALRM, end)
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(SystemExit, match="143"):
                Directory(f"tcp://127.0.0.1:{silent.getsockname()[1]}", None).nodes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
