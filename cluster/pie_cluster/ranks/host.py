"""`python -m pie_cluster.ranks.host --config JSON`: starts ranks for a worker whose first rank
is on another machine of a cluster.

It serves one worker at a time, the one that has come last. Its ranks end with it, with the worker,
and with the connection between them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import msgspec
import structlog
import zmq
from pydantic import BaseModel, ConfigDict

from pie_cluster.config import read_member_pair
from pie_cluster.ranks.remote import use_interface_of
from pie_cluster.wire.ranks import (
    Beat,
    Leave,
    Lives,
    Lost,
    Pass,
    Start,
    ToFirst,
    ToHost,
    decode_to_host,
    encode,
)
from pie_cluster.wire.sockets import Gate, member_router
from pie_inference.errors import LoadError
from pie_inference.parallel.processes import RankProcesses
from pie_py.config.child import report_error, report_ready
from pie_py.config.keys import KeyPair, KeyProblem
from pie_py.config.logs import LogConfig, set_up_logs

log = structlog.get_logger("pie.ranks")

LOOK_MS = 100
# Without a word of the first rank. It may stand still for seconds while it loads a model; a worker
# that takes its place is not kept waiting by this.
SILENT_SECONDS = 10.0


class HostConfig(BaseModel):
    """What a host must know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str
    address: str  # of this machine, for the others
    folder: Path  # of the machine; with the node, what `ps` shows operators
    node: str
    keys: Path | None = None  # of the members' file; None on loopback
    log: LogConfig = LogConfig()


class RankHost:
    """Ranks of this machine, as many as the first one asks for."""

    def __init__(self, config: HostConfig, pair: KeyPair | None) -> None:
        """Binds the socket. Raises `zmq.ZMQError` if it cannot listen there."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = None if pair is None else Gate(self._context, pair)
        self._router = member_router(self._context, config.endpoint, pair)
        self._router.setsockopt(zmq.MAXMSGSIZE, -1)  # plans have any size
        self._router.setsockopt(zmq.RCVHWM, 0)  # and none may be missed
        self._router.bind(config.endpoint)
        bound = self._router.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        self.endpoint = bound.rstrip(b"\0").decode()
        self._first = b""  # the routing id of the worker's first rank
        self._ranks: RankProcesses | None = None
        self._passed = 0  # frames of this worker
        self._heard = 0.0

    def serve(self) -> None:
        """Serves until standard input ends: the parent has gone."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        if self._gate is not None:
            poller.register(self._gate.socket, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll(LOOK_MS))
                if sys.stdin.fileno() in ready:
                    return
                if self._gate is not None and self._gate.socket in ready:
                    self._gate.answer()
                while self._router.poll(0):
                    self._receive(self._router.recv_multipart())
                self._look()
        finally:
            self._end("the host ends")
            self._context.destroy(linger=1000)

    def _receive(self, frames: list[bytes]) -> None:
        try:
            sender, frame = frames
            message = decode_to_host(frame)
        except (ValueError, msgspec.DecodeError) as error:
            log.warning("refused a message", reason=str(error))
            return
        if isinstance(message, Start):
            self._start(sender, message)
        elif sender == self._first and self._ranks is not None:
            self._heard = time.monotonic()
            self._obey(self._ranks, message)
        elif isinstance(message, Beat):
            self._tell(sender, Lost("its ranks have ended"))

    def _start(self, sender: bytes, order: Start) -> None:
        self._end("another worker has come")
        try:
            self._ranks = RankProcesses(self._context, order.ranks, order.config, order.meeting)
        except OSError as error:
            self._tell(sender, Lost(f"no ranks can be started: {error}"))
            return
        self._first, self._passed, self._heard = sender, 0, time.monotonic()
        self._tell(sender, Lives())

    def _obey(self, ranks: RankProcesses, message: ToHost) -> None:
        match message:
            case Pass(frame):
                self._passed += 1
                ranks.pass_on(frame)
            case Beat(passed) if passed == self._passed:
                self._tell(self._first, Lives())
            case Beat(passed):
                self._end(f"of {passed} messages {self._passed} have come")
            case Leave():
                self._ranks = None
                ranks.close()

    def _look(self) -> None:
        if self._ranks is None:
            return
        if (ended := self._ranks.failed()) is not None:
            self._end(f"rank {ended.rank} has ended with status {ended.status}; its log tells why")
        elif time.monotonic() - self._heard > SILENT_SECONDS:
            self._end(f"the first rank says nothing for {SILENT_SECONDS:g} s")

    def _end(self, reason: str) -> None:
        """Ends the ranks, if there are any, and tells the first one."""
        if self._ranks is None:
            return
        log.error("the ranks end", reason=reason)
        self._tell(self._first, Lost(reason))
        ranks, self._ranks = self._ranks, None
        ranks.close(0)

    def _tell(self, sender: bytes, message: ToFirst) -> None:
        self._router.send_multipart((sender, encode(message)))


def main() -> int:
    """Serves until the parent has gone."""
    parser = argparse.ArgumentParser(prog="python -m pie_cluster.ranks.host")
    parser.add_argument("--config", required=True, help="a HostConfig, as JSON")
    parser.add_argument("--with-parent", action="store_true", required=True)
    config = HostConfig.model_validate(json.loads(parser.parse_args().config))
    set_up_logs(config.log)
    try:
        use_interface_of(config.address)
        host = RankHost(config, read_member_pair(config.keys))
    except (KeyProblem, LoadError) as error:
        report_error(str(error))
        return 1
    except zmq.ZMQError as error:
        report_error(f"the host of ranks cannot listen on {config.endpoint}: {error.strerror}")
        return 1
    report_ready(host.endpoint)
    host.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
