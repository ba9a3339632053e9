"""Why a server cannot be reached, and how to mend it."""

from __future__ import annotations

import anyio.to_thread
import zmq

from pie_py.config.endpoint import Endpoint, mechanism

FAILURES = (
    zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
)
_MAKE_KEY = "`pie-py keys add USER` on the server's machine makes one"


async def encrypts(endpoint: Endpoint) -> bool:
    """True if a server that wants a key answers there. Takes two seconds at most."""
    try:
        found = await anyio.to_thread.run_sync(mechanism, endpoint, abandon_on_cancel=True)
    except OSError:
        return False
    return found == "CURVE"


async def diagnose(endpoint: Endpoint, has_key: bool, event: zmq.Event) -> str | None:
    """The lasting fault of a server that has not been reached; None if it may yet answer.

    ZeroMQ's event is one of `FAILURES`, or that the connection broke or was not made. It does not
    tell more: whichever side sees first that the other speaks another security mechanism closes, so
    the same fault shows as several events. So the server is asked for its mechanism. Takes two
    seconds at most.
    """
    if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
        return _wrong_key(endpoint)
    try:
        found = await anyio.to_thread.run_sync(mechanism, endpoint, abandon_on_cancel=True)
    except (OSError, UnicodeError):  # the latter for a host that no name can be
        return f"no server at {endpoint.text}; `pie-py serve` starts one"
    match found, has_key:
        case "NULL", True:
            return _needless_key(endpoint)
        case "CURVE", False:
            return (
                f"the server at {endpoint.text} encrypts and wants a key: pass --key FILE, or"
                f" key=FILE in Python, or set PIE_PY_KEY; {_MAKE_KEY}"
            )
        case "CURVE", True if event & FAILURES:
            return _wrong_key(endpoint)
        case None, _ if event != zmq.Event.DISCONNECTED:  # as a tunnel does while its end is away
            return (
                f"what listens at {endpoint.text} is no pie_py server; `pie-py serve` starts one,"
                " --endpoint names another"
            )
    return None


def _wrong_key(endpoint: Endpoint) -> str:
    return (
        f"the server at {endpoint.text} does not accept this key: it belongs to another server, or"
        f" its user was removed here; {_MAKE_KEY}"
    )


def _needless_key(endpoint: Endpoint) -> str:
    if endpoint.is_loopback:
        return (
            f"the server at {endpoint.text} does not encrypt, so it takes no key: leave out --key,"
            " or key= in Python. It would encrypt if it listened to other machines, as with"
            " `pie-py serve --endpoint tcp://0.0.0.0:PORT`"
        )
    return (
        f"the server at {endpoint.text} does not encrypt, as every pie_py server does that listens"
        " to other machines: this is another program, or a port forwarded to a server that"
        " listens to its own machine alone; start that one with --endpoint tcp://0.0.0.0:PORT"
    )
