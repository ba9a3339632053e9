"""A process of a cluster and its parent, the actor that keeps it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress

LEAVE_SECONDS = 5.0  # after the parent has gone, for a control loop that does not turn
LOOK_SECONDS = 0.5
PR_SET_PDEATHSIG = 1  # of prctl(2)


def tell_parent(message: dict[str, object]) -> None:
    """Writes one line to the parent."""
    with suppress(OSError):  # the parent has gone, which is noticed elsewhere
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


def leave_with_parent() -> None:
    """Ends this process when its parent has gone, even if its event loop does not turn.

    The loop sees the end of standard input as well, and ends its instances in order. A process that
    was stopped is continued by the kernel when its parent dies, so that it ends, too.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        time.sleep(LEAVE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
