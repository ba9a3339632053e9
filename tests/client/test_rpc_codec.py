from __future__ import annotations

import contextlib
from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.rpc.program_requests import ProgramRequests
from pie_control.rpc.requests import Requests
from pie_py.config.endpoint import BadEndpoint, parse_endpoint
from pie_py.config.gateway import GatewayConfig
from pie_py.wire import methods
from pie_py.wire.rpc import (
    Ack,
    Bye,
    Closed,
    Ended,
    Failure,
    Hello,
    Items,
    Message,
    NotAMessage,
    Ping,
    Pong,
    Probe,
    Probed,
    ReadRequest,
    Refused,
    Request,
    Response,
    Resume,
    ToServer,
    Welcome,
    Who,
    decode,
    encode,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.integers(0, (1 << 63) - 1)
plain = st.recursive(
    st.none() | st.booleans() | number | text | st.binary(max_size=20) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
table = st.dictionaries(text, plain, max_size=4)
item = text | st.binary(max_size=50) | st.builds(Ended, text, text)
messages = st.one_of(
    st.builds(Hello, number, st.binary(max_size=20), text),
    st.builds(Request, number, number, text, table),
    st.builds(Ack, text, number),
    st.builds(Resume, text, number, number),
    st.builds(Ping),
    st.builds(Welcome, st.booleans(), text, table),
    st.builds(Refused, text, text),
    st.builds(Who),
    st.builds(Response, number, plain),
    st.builds(Failure, number, text, text),
    st.builds(Items, text, number, st.lists(item, max_size=5)),
    st.builds(Closed, text, text, text),
    st.builds(Pong),
    st.builds(Probe, number),
    st.builds(Probed, number),
    st.builds(Bye, text),
)


@given(messages)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    found = decode(encode(message))
    if isinstance(found, ReadRequest):  # whose parameters are read by its method's types
        params: Any = found.params
        params = msgspec.msgpack.decode(params)
        found = Request(found.number, found.answered_below, found.method, params)
    assert found == message


@given(messages)
def test_a_server_reads_no_message_that_is_for_clients(message: Message) -> None:
    refused = pytest.raises(NotAMessage, match="not a message of protocol")
    with contextlib.nullcontext() if isinstance(message, get_args(ToServer)) else refused:
        decode(encode(message), at_server=True)


@given(st.binary(max_size=200) | plain.map(msgpack.packb))
def test_other_bytes_are_refused(frame: bytes) -> None:
    try:
        message = decode(frame)
    except ValueError:
        return
    assert decode(encode(message)) == message


@pytest.mark.parametrize("frame", [["x" * 1_000_000], ["request", 1, 0, "has", {}, "x"]])
def test_what_is_no_message_is_not_repeated(frame: list[Any]) -> None:
    with pytest.raises(NotAMessage, match="not a message of protocol") as raised:
        decode(msgpack.packb(frame))
    assert len(str(raised.value)) < 300


@given(messages, st.data())
def test_a_damaged_message_is_refused_or_another_message(message: Message, data: Any) -> None:
    frame = bytearray(encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        decode(bytes(frame))


def test_endpoints() -> None:
    for good in ("tcp://127.0.0.1:7743", "tcp://localhost:1", "tcp://[::1]:9", "ipc:///tmp/x"):
        assert parse_endpoint(good).is_loopback
    for good in ("tcp://0.0.0.0:7743", "tcp://*:1", "tcp://[::]:9", "tcp://example.org:80"):
        assert not parse_endpoint(good).is_loopback
    # Who listens at a name decides by its address, and so does the gateway, which gets that.
    resolved = {
        text: parse_endpoint(text).resolved() for text in ("tcp://lo:9", "tcp://localhost:9")
    }
    assert {each.text for each in resolved.values()} == {"tcp://127.0.0.1:9"}
    assert all(each.is_loopback for each in resolved.values())
    for same in ("tcp://127.0.1.1:9", "tcp://[::1]:9", "tcp://*:9", "ipc:///tmp/x"):
        assert parse_endpoint(same).resolved() == parse_endpoint(same)
    assert GatewayConfig(http="localhost:80").is_local
    assert not GatewayConfig(http="127.nothing.invalid:80").is_local
    for bad in ("", "7743", "tcp://a", "tcp://a:99999", "ipc://", "http://x", "ipc://" + "x" * 200):
        with pytest.raises(BadEndpoint):
            parse_endpoint(bad)


def test_each_method_of_the_protocol_has_a_handler_of_its_parameters() -> None:
    for method in methods.OF_ALL_NODES + methods.OF_INSTANCES:
        name = methods.name_of(method).replace("-", "_")
        handler = getattr(ProgramRequests, name, None) or getattr(Requests, f"_{name}")
        assert handler.__annotations__["asked"] == f"methods.{method.__name__}"
