"""The connection to the directory, in trio's loop."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio
import zmq

from pie_cluster.config import MemberConfig
from pie_cluster.wire.messages import NotOfCluster, ToDirectory, ToNode, decode_told, encode
from pie_cluster.wire.sockets import member_dealer
from pie_py.wire.zmq_socket import Socket

log = structlog.get_logger("pie.cluster")


class DirectoryLink:
    """Reports, and hears what the directory says."""

    def __init__(self, config: MemberConfig) -> None:
        """Connects; nothing is received before `run`.

        Raises:
            KeyProblem: if the members' keys cannot be read.
        """
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = Socket(member_dealer(self._context, config.directory, config.pair()))
        self.on_told: Callable[[ToNode], None] = lambda told: None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receives until cancelled."""
        task_status.started()
        try:
            while True:
                while (frame := self._socket.receive()) is not None:
                    try:
                        told = decode_told(frame)
                    except NotOfCluster as error:
                        log.warning("the directory says what is not known", reason=str(error))
                        continue
                    self.on_told(told)
                await self._socket.wait()
        finally:
            self._context.destroy(linger=0)

    def say(self, message: ToDirectory) -> bool:
        """Sends a message; False if it cannot be sent now."""
        return self._socket.send(encode(message)) is None
