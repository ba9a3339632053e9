"""The connection to the directory, in trio's loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import structlog
import trio
import zmq

from pie_cluster.config import MemberConfig
from pie_cluster.wire.messages import (
    UNASKED,
    Answer,
    NotOfCluster,
    Question,
    Refused,
    ToDirectory,
    ToNode,
    decode_told,
    encode,
)
from pie_cluster.wire.sockets import member_dealer
from pie_control.errors import ApiError, Refusal
from pie_py.wire.zmq_socket import Socket

log = structlog.get_logger("pie.cluster")

AGAIN_SECONDS = 0.5  # without an answer: the question is asked again
CONNECT_SECONDS = 0.02  # between two looks for a connection
STARTING_SECONDS = 0.1  # between two questions to a directory that has just started
PATIENCE_SECONDS = 8.0  # a directory that was killed is back sooner


class DirectoryLink:
    """Speaks with the directory, of many things at once."""

    def __init__(self, config: MemberConfig) -> None:
        """Connects; nothing is received before `run`.

        Raises:
            KeyProblem: if the members' keys cannot be read.
        """
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = Socket(member_dealer(self._context, config.directory, config.pair()))
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self.on_told: Callable[[ToNode], None] = lambda told: None  # of what is no answer

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
                    if isinstance(told, UNASKED):
                        self.on_told(told)
                    elif (take := self._waiting.pop(told.number, None)) is not None:
                        take(told)
                await self._socket.wait()
        finally:
            self._context.destroy(linger=0)

    def say(self, message: ToDirectory) -> bool:
        """Sends what has no answer of its own; False if it cannot be sent now."""
        return self._socket.send(encode(message)) is None

    async def ask(
        self, question: Callable[[int], Question], seconds: float = PATIENCE_SECONDS
    ) -> Answer:
        """The answer to a question, which is asked again under another number until it comes.

        Args:
            question: makes it, of its number. Asking it twice must do no harm.
            seconds: to wait at most.

        Raises:
            Refusal: what the directory refuses.
            ApiError: `busy` if it does not answer.
        """
        answer: Answer | None = None
        with trio.move_on_after(seconds):
            while answer is None:
                answer = await self._ask_once(question)
                if isinstance(answer, Refused) and answer.code == "starting":
                    await trio.sleep(STARTING_SECONDS)
                    answer = None
        if answer is None:
            raise ApiError(
                "busy", "the directory of the cluster does not answer; try again in a few seconds"
            )
        if isinstance(answer, Refused):
            raise Refusal(answer.code, answer.message)
        return answer

    async def _ask_once(self, question: Callable[[int], Question]) -> Answer | None:
        """The answer; None if none comes soon."""
        done = trio.Event()
        found: list[Answer] = []

        def take(answer: Answer) -> None:
            found.append(answer)
            done.set()

        number = next(self._numbers)
        self._waiting[number] = take
        try:
            sent = self.say(question(number))
            with trio.move_on_after(AGAIN_SECONDS if sent else CONNECT_SECONDS):
                await done.wait()
        finally:
            self._waiting.pop(number, None)
        return found[0] if found else None
