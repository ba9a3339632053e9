"""Who may speak for another user: gateways, which nodes know by the members' keys."""

from __future__ import annotations

from support.rpc_world import Server

from pie_py.config.keys import LOCAL_USER
from pie_py.wire.rpc import PROTOCOL, HelloFor, Refused, Welcome

HELLO = HelloFor(PROTOCOL, b"0123456789abcdef", "a test", "victim")


def test_a_user_does_not_speak_for_another() -> None:
    [answer] = Server(lambda: 0.0).ask(b"1", HELLO, "mallory")
    assert isinstance(answer, Refused)
    assert answer.code == "permission-denied"


def test_a_gateway_speaks_for_the_user_whose_connection_it_passes_on() -> None:
    [answer] = Server(lambda: 0.0).ask(b"1", HELLO, LOCAL_USER)
    assert isinstance(answer, Welcome)
    assert answer.user == "victim"
