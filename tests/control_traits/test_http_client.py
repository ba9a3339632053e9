"""The server's HTTP client against real local servers, well-behaved and not."""

from __future__ import annotations

import gzip
import ssl
import threading
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st
from support.web_servers import Asked, Caller, always, browser, echo, packed, reply

from pie_control.api.http import exchange
from pie_control.api.http.exchange import Body
from pie_control.errors import ApiError


def run(test: object) -> None:
    trio.run(test)  # type: ignore[arg-type]


async def silent(stream: trio.SocketStream, asked: Asked) -> None:
    await stream.receive_some(1)


async def test_get_and_post() -> None:
    async with browser() as b:
        web = await b.web()
        got = await b.fetch(f"{web.url}/a b?x=ü")
        assert (got.status, got.body) == (200, b"GET /a%20b?x=%C3%BC ")
        assert ("content-type", "text/plain") in got.headers
        posted = await b.fetch(web.url, method="POST", body=b"hello", headers=[("X-A", "1")])
        assert posted.body == b"POST / hello"
        assert web.asked[1].headers["x-a"] == "1"
        assert web.asked[1].headers["content-length"] == "5"
        assert web.accepted == 1, "the connection is kept"


async def test_a_body_is_streamed_and_backpressure_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RESPONSE_BYTES", 1 << 20)
    sent = 0

    async def endless(stream: trio.SocketStream, asked: Asked) -> None:
        nonlocal sent
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await stream.send_all(b"x" * 65536)
            sent += 65536

    async with browser() as b:
        web = await b.web(endless)
        _, _, body = await b.head(web.url)
        assert await b.read(body, 10) == b"x" * 10
        assert len(await b.read(body, 7)) == 7
        # Nothing is read from the socket any more, so the other end has to stop.
        with trio.fail_after(60):
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert sent < 32 << 20, "nothing is kept but what sockets hold"
        with pytest.raises(ApiError, match="limit-exceeded: the body has more than 1048576"):
            await b.rest(body)
        await b.until_idle(web)


async def test_slow_bodies_arrive_as_they_come() -> None:
    go = trio.Event()

    async def slow(stream: trio.SocketStream, asked: Asked) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await stream.send_all(b"3\r\none\r\n")
        await go.wait()
        await stream.send_all(b"3\r\ntwo\r\n0\r\n\r\n")

    async with browser() as b:
        web = await b.web(slow)
        _, _, body = await b.head(web.url)
        assert await b.read(body) == b"one"
        go.set()
        assert await b.read(body) == b"two"
        assert await b.read(body) == b""
        assert await b.read(body) == b"", "the end stays the end"
        assert b.client.running == 0


async def test_gzip_is_unpacked_unless_the_program_asks_for_encodings() -> None:
    data = gzip.compress(b"one") + gzip.compress(b"two")
    async with browser() as b:
        web = await b.web(always(reply(200, data, "Content-Encoding: gzip")))
        got = await b.fetch(web.url)
        assert got.body == b"onetwo"
        assert not {"content-encoding", "content-length"} & {n for n, _ in got.headers}
        assert web.asked[0].headers["accept-encoding"] == "gzip"
        raw = await b.fetch(web.url, headers=[("Accept-Encoding", "gzip, br")])
        assert raw.body == data
        broken = await b.web(always(reply(200, data[:-3], "Content-Encoding: gzip")))
        await b.failure(broken.url, "remote-failed", "ends in the middle")
        noise = await b.web(always(reply(200, b"noise", "Content-Encoding: gzip")))
        await b.failure(noise.url, "remote-failed")


async def test_a_bomb_is_unpacked_no_further_than_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "RESPONSE_BYTES", 2 << 20)
    bomb = packed(32 << 20)
    async with browser() as b:
        web = await b.web(always(reply(200, bomb, "Content-Encoding: gzip")))
        await b.failure(web.url, "limit-exceeded")
        _, _, body = await b.head(web.url)
        assert len(await b.read(body, 1000)) == 1000
        b.client.close_body(b.caller, body)  # type: ignore[arg-type]
        await b.until_idle(web)


async def test_pieces_that_hold_nothing_hold_nobody_up() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def pieces() -> AsyncIterator[bytes]:
        yield gzip.compress(b"") * 100
        start = zlib.compressobj(wbits=31)
        yield start.compress(b"") or start.flush(zlib.Z_SYNC_FLUSH)
        for _ in range(100):
            yield b"\0\0\0\xff\xff"  # a block of no bytes
        yield start.compress(b"all") + start.flush()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        body = Body(pieces(), 100, gzip=True)
        assert await body.read(10) == b"all"
        assert turns >= 200
        assert await body.read(10) == b""
        nursery.cancel_scope.cancel()


async def test_redirects_are_followed_and_bounded() -> None:
    async def turn(stream: trio.SocketStream, asked: Asked) -> None:
        await stream.send_all(reply(302, b"", f"Location: {asked.target}x"))

    async with browser() as b:
        end = await b.web()
        hop = await b.web(always(reply(303, b"gone", f"Location: {end.url}/end")))
        got = await b.fetch(
            hop.url,
            method="POST",
            body=b"data",
            headers=[
                ("Authorization", "secret"),
                ("Cookie", "secret"),
                ("X-Api-Key", "secret"),
                ("User-Agent", "me"),
                ("Content-Type", "text/x"),
            ],
        )
        assert got.body == b"GET /end ", "303 makes a GET of it"
        seen = end.asked[0].headers
        assert seen["user-agent"] == "me"
        assert not {"authorization", "cookie", "x-api-key", "content-type"} & set(seen)
        assert seen["host"] == f"127.0.0.1:{end.port}"
        kept = await b.web(always(reply(307, b"", f"Location: {end.url}/kept")))
        assert (await b.fetch(kept.url, method="POST", body=b"b")).body == b"POST /kept b"
        loop = await b.web(turn)
        await b.failure(loop.url, "limit-exceeded")
        assert len(loop.asked) == exchange.MAX_REDIRECTS + 1
        for place in ("ftp://x/", "https://// ]http://"):
            nowhere = await b.web(always(reply(302, b"", f"Location: {place}")))
            await b.failure(nowhere.url, "remote-failed")


async def test_the_url_of_an_answer_is_where_redirects_led_to() -> None:
    async with browser() as b:
        end = await b.web()
        hop = await b.web(always(reply(302, b"", f"Location: {end.url}/there?x=1#part")))
        for start, led in ((hop.url, f"{end.url}/there?x=1"), (end.url, f"{end.url}")):
            _, _, body = await b.head(f"{start}")
            assert b.client.response_url(b.caller, body) == led  # type: ignore[arg-type]
            await b.rest(body)
            assert b.client.response_url(b.caller, body) == led, "also when all is read"  # type: ignore[arg-type]
            b.client.close_body(b.caller, body)  # type: ignore[arg-type]
            with pytest.raises(ApiError, match="invalid-handle"):
                b.client.response_url(b.caller, body)  # type: ignore[arg-type]


async def test_a_place_in_plain_utf8_is_what_it_says() -> None:
    """As browsers read it: some servers write paths as they are."""
    async with browser() as b:
        end = await b.web()
        answer = f"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: {end.url}/café\r\n\r\n"
        hop = await b.web(always(answer.encode()))
        assert (await b.fetch(hop.url)).body == b"GET /caf%C3%A9 "
        old = await b.web(always(answer.encode("latin-1")))
        assert (await b.fetch(old.url)).body == b"GET /caf%C3%A9 "


async def test_headers_stay_within_one_origin() -> None:
    async def turn(stream: trio.SocketStream, asked: Asked) -> None:
        if asked.target == "/end":
            await echo(stream, asked)
        else:
            await stream.send_all(reply(302, b"", "Location: /end"))

    async with browser() as b:
        web = await b.web(turn)
        await b.fetch(web.url, headers=[("Authorization", "mine")])
        assert web.asked[1].headers["authorization"] == "mine"


async def test_a_redirect_to_a_private_address_is_refused() -> None:
    async with browser(allow=("127.0.0.1:*", "*"), allow_networks=()) as b:
        inner = await b.web(host="127.0.0.2")
        for place in (
            "http://10.0.0.1/",
            "http://169.254.169.254/latest/meta-data",
            "http://[::ffff:10.0.0.1]/",
            "http://[64:ff9b::a00:1]/",
            "http://[2002:a00:1::]/",
        ):
            hop = await b.web(always(reply(302, b"", f"Location: {place}")))
            await b.failure(hop.url, "permission-denied", "not public")
        hop = await b.web(always(reply(302, b"", f"Location: http://127.0.0.2:{inner.port}/")))
        await b.failure(hop.url, "permission-denied", f"port {inner.port} of 127.0.0.2")
        assert not inner.asked


async def test_a_name_that_answers_differently_the_second_time_is_of_no_use() -> None:
    answers = {"rebind.test": [["127.0.0.1"], ["127.0.0.2"]]}
    asked: list[str] = []

    def resolver(host: str, port: int) -> list[str]:
        assert threading.current_thread() is not threading.main_thread()
        asked.append(host)
        found = answers[host]
        return found.pop(0) if len(found) > 1 else found[0]

    # The first answer is allowed, the second one is not.
    async with browser(resolver, allow_networks=("127.0.0.1/32",)) as b:
        web = await b.web(always(reply(200, b"fine", "Connection: close")))
        url = f"http://rebind.test:{web.port}/"
        assert (await b.fetch(url)).body == b"fine"
        assert asked == ["rebind.test"], "asked once: what was checked is what is connected to"
        await b.failure(url, "permission-denied")
        assert len(web.asked) == 1


async def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1", "192.168.1.1"]

    async with browser(resolver) as b:
        web = await b.web()
        told = "is 192.168.1.1", "--allow-http-network 192.168.1.1/32"
        await b.failure(f"http://both.test:{web.port}/", "permission-denied", *told)


async def test_the_next_address_is_tried_if_one_does_not_answer() -> None:
    async with browser(lambda host, port: ["127.0.0.3", "127.0.0.1"]) as b:
        web = await b.web()
        assert (await b.fetch(f"http://two.test:{web.port}/")).status == 200


async def test_names_that_are_not_found_and_servers_that_are_not_there() -> None:
    def resolver(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    async with browser(resolver) as b:
        await b.failure("http://nowhere.test/", "not-found")
        await b.failure("http://127.0.0.1:1/", "remote-failed", "127.0.0.1:1")


async def test_broken_answers_are_errors() -> None:
    async def reset(stream: trio.SocketStream, asked: Asked) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await stream.aclose()

    async with browser() as b:
        web = await b.web(reset)
        _, _, body = await b.head(web.url)
        assert await b.read(body) == b"half"
        with pytest.raises(ApiError, match="remote-failed"):
            await b.read(body)
        for data, code in (
            (b"", "remote-failed"),
            (b"HTTP/9 hello\r\n\r\n", "remote-failed"),
            (b"\0\xff" * 1000, "remote-failed"),
            (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 200_000, "limit-exceeded"),
            (reply(200, b"", "A: " + "a" * 33_000), "limit-exceeded"),
            (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "limit-exceeded"),
            (b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 20_000, "limit-exceeded"),
        ):

            async def answer(stream: trio.SocketStream, asked: Asked, data: bytes = data) -> None:
                await stream.send_all(data)
                await stream.aclose()

            broken = await b.web(answer)
            await b.failure(broken.url, code)
        await b.until_idle(web)


async def test_time_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drips(stream: trio.SocketStream, asked: Asked) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await stream.send_all(b".")
            await trio.sleep(0.01)

    async with browser() as b:
        for handler in (silent, drips):
            web = await b.web(handler)
            await b.failure(web.url, "timed-out", timeout_ms=300)
            await b.until_idle(web)
        with pytest.raises(ApiError, match="invalid-argument"):
            await b.head(web.url, timeout_ms=10**9)
    monkeypatch.setattr("pie_control.api.http.functions.DEFAULT_TIMEOUT", 0.3)
    async with browser() as b:
        web = await b.web(silent)
        await b.failure(web.url, "timed-out")  # none was asked for


async def test_a_name_server_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CONNECT_SECONDS", 0.2)
    released = threading.Event()

    def resolver(host: str, port: int) -> list[str]:
        released.wait(20)
        return ["127.0.0.1"]

    async with browser(resolver) as b:
        await b.failure("http://hangs.test/", "timed-out")
        web = await b.web()
        assert (await b.fetch(web.url)).status == 200
    released.set()


async def test_given_up_requests_close_their_connections() -> None:
    async with browser() as b:
        web = await b.web(silent)
        handle = b.client.http_request(b.caller, "GET", web.url, [], b"", 0)  # type: ignore[arg-type]
        await web.was_asked.wait()
        b.caller.futures.cancel(handle)
        await b.until_idle(web)

        async def half(stream: trio.SocketStream, asked: Asked) -> None:
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
            await stream.receive_some(1)

        # An answer that is there but not taken; one that is half read; one whose body is
        # closed.
        web = await b.web(half)
        other = Caller()
        handle = b.client.http_request(other, "GET", web.url, [], b"", 0)  # type: ignore[arg-type]
        await other.ready(handle)
        other.futures.close()
        await b.until_idle(web)
        _, _, body = await b.head(web.url)
        assert await b.read(body) == b"half"
        b.client.drop_instance(b.caller)  # type: ignore[arg-type]
        await b.until_idle(web)
        _, _, body = await b.head(web.url)
        b.client.close_body(b.caller, body)  # type: ignore[arg-type]
        await b.until_idle(web)
        with pytest.raises(ApiError, match="invalid-handle"):
            b.client.close_body(b.caller, body)  # type: ignore[arg-type]


async def test_a_read_that_is_given_up_loses_nothing() -> None:
    go = trio.Event()

    async def slow(stream: trio.SocketStream, asked: Asked) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
        await go.wait()
        await stream.send_all(b"abcdef")

    async with browser() as b:
        web = await b.web(slow)
        _, _, body = await b.head(web.url)
        first = b.client.read_body(b.caller, body, 3)  # type: ignore[arg-type]
        with pytest.raises(ApiError, match="busy"):
            b.client.read_body(b.caller, body, 3)  # type: ignore[arg-type]
        b.caller.futures.cancel(first)
        second = b.client.read_body(b.caller, body, 3)  # type: ignore[arg-type]
        go.set()
        await b.caller.ready(second)
        with pytest.raises(ApiError, match="busy"):  # or the bytes had no order
            b.client.read_body(b.caller, body, 3)  # type: ignore[arg-type]
        b.caller.futures.cancel(second)  # it had its bytes already
        assert await b.read(body, 2) == b"ab"
        b.caller.futures.hold(b.caller.limits.memory)
        with pytest.raises(ApiError, match="limit-exceeded"):
            await b.read(body)
        b.caller.futures.hold(-b.caller.limits.memory)
        assert await b.read(body) + await b.read(body) == b"cdef"


async def test_limits_of_an_instance_and_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(caller: Caller, url: str) -> int:
        return b.client.http_request(caller, "GET", url, [], b"", 0)  # type: ignore[arg-type]

    monkeypatch.setattr("pie_control.api.http.functions.USER_REQUESTS", 3)
    monkeypatch.setattr("pie_control.api.http.functions.BURST", 8.0)
    async with browser(concurrent=2, bodies=4, rate=0.001) as b:
        web, other = await b.web(silent), Caller()
        ask(b.caller, web.url)
        ask(b.caller, web.url)
        with pytest.raises(ApiError, match="limit-exceeded: 2 requests are under way"):
            ask(b.caller, web.url)
        ask(other, web.url)
        with pytest.raises(ApiError, match="3 requests of this user"):
            ask(other, web.url)
        ask(Caller(user="somebody else"), web.url)
        b.caller.futures.close()
        other.futures.close()
        good = await b.web()
        for _ in range(4):
            _, _, body = await b.head(good.url)
            while await b.read(body):
                pass
        with pytest.raises(ApiError, match="4 bodies are open"):
            ask(b.caller, good.url)
        for body in range(1, 5):
            b.client.close_body(b.caller, body)  # type: ignore[arg-type]
        for _ in range(2):
            await b.fetch(good.url)
        with pytest.raises(ApiError, match=r"more than 0\.001 requests per second"):
            ask(b.caller, good.url)


async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async with browser() as b:
        web = await b.web()
        assert (await b.fetch(web.url)).status == 200


def test_certificates_are_verified_for_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))

    async def main() -> None:
        async with browser(lambda host, port: ["127.0.0.1"]) as b:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            authority.issue_cert("good.test").configure_cert(context)
            web = await b.web()

            async def serve(stream: trio.SocketStream) -> None:
                await web.serve(trio.SSLStream(stream, context, server_side=True))  # type: ignore[arg-type]

            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listeners[0].socket.getsockname()[1]
            b.nursery.start_soon(trio.serve_listeners, serve, listeners)
            if trusted:
                assert (await b.fetch(f"https://good.test:{port}/")).status == 200
            for name in ("bad.test",) if trusted else ("good.test", "bad.test"):
                url = f"https://{name}:{port}/"
                await b.failure(url, "remote-failed", "certificate verify failed")

    trusted = False
    run(main)
    trusted = True
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    run(main)


PIECES = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 302 Found\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 X\r\n\r\n",
        b"HTTP/1.0 204\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: gzip\r\n",
        b"Location: /again\r\n",
        b"Location: http://[::1/\r\n",
        b"Connection: close\r\n",
        b"A: \xff\r\n",
        b"\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"hello",
        b"ffffffffffffffffffff\r\n",
        gzip.compress(b"hello"),
        b"\0",
    ]
)


@settings(max_examples=60)
@given(answer=st.lists(PIECES | st.binary(max_size=20), max_size=8))
async def test_any_bytes_are_an_answer_or_an_error(answer: list[bytes]) -> None:
    async def send(stream: trio.SocketStream, asked: Asked) -> None:
        for piece in answer:
            await stream.send_all(piece)
        await stream.aclose()

    async with browser() as b:
        web, good = await b.web(send), await b.web()
        try:
            got = await b.fetch(web.url, timeout_ms=5000)
        except ApiError as error:
            assert error.code in ("remote-failed", "limit-exceeded")  # noqa: PT017
        else:
            assert 100 <= got.status < 600
        assert (await b.fetch(good.url)).status == 200
        await b.until_idle(web)


async def test_bodies_do_not_stay_in_memory_with_their_handles() -> None:
    async with browser(bodies=10_000) as b:
        web = await b.web()
        _, _, body = await b.head(web.url, method="POST", body=b"x" * 1000)
        await b.rest(body)
        exchange = b.client._shares[b.caller].bodies[body]  # type: ignore[index]
        assert not exchange._request.body
