"""The order of calls across the queues of one instance, where they touch the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_control.scheduler.command import Command, Numbers
from pie_control.scheduler.queue import Account


class CallOrder:
    """Finds out which commands must wait for other queues.

    Queues run independently where they touch different pages and embeds. Where they touch the same, and
    one of them writes, the order of the calls counts. So no instance can read what the last owner of a
    page left there by reading it before its own write has been sent.

    Kept for owners of several queues only: a single queue is ordered by itself.
    """

    def __init__(self, pages: int, embeds: int) -> None:
        # Numbers of the newest commands that write, and that read or write, each page and embed.
        self._page_writer: NDArray[np.int64] = np.zeros(pages, np.int64)
        self._page_user: NDArray[np.int64] = np.zeros(pages, np.int64)
        self._embed_writer: NDArray[np.int64] = np.zeros(embeds, np.int64)
        self._embed_user: NDArray[np.int64] = np.zeros(embeds, np.int64)

    def record(self, account: Account, command: Command) -> None:
        """Notes what a numbered command touches, and sets up to which number others go before it."""
        number = command.number
        pages_read, embeds_read = command.read()
        pages_written, embeds_written = command.written()
        if any(queue is not command.queue for queue in account.active):
            command.after = max(
                account.barrier,
                _newest(self._page_writer, pages_read),
                _newest(self._embed_writer, embeds_read),
                _newest(self._page_user, pages_written),
                _newest(self._embed_user, embeds_written),
            )
        self._page_user[pages_read] = number
        self._embed_user[embeds_read] = number
        self._page_user[pages_written] = self._page_writer[pages_written] = number
        self._embed_user[embeds_written] = self._embed_writer[embeds_written] = number


def _newest(numbers: NDArray[np.int64], touched: Numbers) -> int:
    return int(numbers[touched].max()) if touched else 0
