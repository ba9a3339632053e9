"""HTTP and MCP: what tests launch; the first argument says which. `outside_guests` does it in
Rust.
"""

import asyncio
import json
from typing import Any

from inferlet import PieError, http, mcp, raw, ready, session


async def get(url):
    response = await http.get(url, headers={"X-Mine": "ü"})
    return (
        f"{response.status} {response.headers.get('Content-Type', 'none')} {await response.text()}"
    )


async def post(url, body):
    response = await http.post(url, body=body, headers={"Content-Type": "text/x"})
    return f"{response.status} {await response.text()}"


async def read_json(url):
    return (await (await http.get(url)).json()).get("name", "nameless")


async def stream(url):
    size = 0
    async with await http.get(url) as response:
        async for chunk in response.stream():
            if not size:
                session.send("begun")
            size += len(chunk)
    return str(size)


async def lines(url):
    found = [line async for line in (await http.get(url)).raise_for_status().lines()]
    return f"{len(found)} {'|'.join(found)}"


async def many(url, count):
    async def one(i):
        return await (await http.get(f"{url}{i}")).text()

    return ",".join(await asyncio.gather(*(one(i) for i in range(int(count)))))


async def hurry(url, milliseconds):
    return await (await http.get(url, timeout=int(milliseconds) / 1000)).text()


async def give_up(url):
    try:
        return str((await asyncio.wait_for(http.get(url), 0.3)).status)
    except TimeoutError:
        return "given up"


async def leave(url):
    future = raw.http_get(url, [])
    await ready(future)
    return f"left {raw.take_response(future)[2]}"


async def library(url):
    """What only the Python SDK offers."""
    assert {"http", "mcp"} <= set(raw.available_traits(raw.available_models()[0]))
    asked = await http.get(f"{url}/echo#part", params={"q": "a b", "n": [1, 2]})
    assert (await asked.text()).startswith("page /echo?q=a+b&n=1&n=2"), await asked.text()
    assert await asked.text() == (await asked.read()).decode(), "what was read can be read again"
    large = await http.get(f"{url}/large")
    one, other = await asyncio.gather(large.read(), large.read(), return_exceptions=True)
    assert isinstance(one, bytes)
    assert isinstance(other, PieError)
    assert (len(one), other.code) == (3_000_000, "invalid-handle"), "neither has a part of the body"
    async with await http.get(f"{url}/echo") as closed:
        pass
    try:
        await closed.read()
        refused = ""
    except PieError as error:
        refused = error.code
    assert refused == "invalid-handle", "a closed body is no empty one"
    sent = await http.post(url, json={"a": [1, None]})
    assert await sent.text() == 'application/json {"a": [1, null]}'
    cookies = (await http.get(f"{url}/cookies")).headers
    assert cookies.get_all("Set-Cookie") == ["a=1", "b=2"]
    assert cookies["SET-COOKIE"] == "a=1, b=2"
    assert "absent" not in cookies
    try:
        (await http.get(f"{url}/missing")).raise_for_status()
    except http.HttpError as error:
        assert error.status == 404  # noqa: PT017
    else:
        raise AssertionError("no error")
    first = await http.get(f"{url}/large")
    async for chunk in first.stream(100):
        assert len(chunk) <= 100
        break
    del first
    for wrong in (lambda: http.get(5), lambda: http.post(url, body="a", json=1)):  # type: ignore[arg-type]  # refused
        try:
            await wrong()
        except TypeError:
            continue
        raise AssertionError("no error")
    latin, odd = await http.get(f"{url}/latin"), await http.get(f"{url}/idna")
    assert await odd.text() == "größe", "what is no encoding of texts is passed over"
    return await latin.text()


async def servers():
    return " ".join(mcp.servers())


async def tools(server):
    return " ".join(tool.name for tool in await mcp.list_tools(server))


async def call(server, tool, arguments):
    result = await mcp.call_tool(server, tool, json.loads(arguments))
    return f"{'error' if result.is_error else 'ok'} {result.text}"


async def cancel(server, tool, arguments):
    try:
        call = mcp.call_tool(server, tool, json.loads(arguments))
        return (await asyncio.wait_for(call, 1.5)).text
    except TimeoutError:
        return "given up"


async def main(args: list[str]) -> str:
    guests: dict[str, Any] = {
        "get": get,
        "post": post,
        "json": read_json,
        "stream": stream,
        "lines": lines,
        "many": many,
        "hurry": hurry,
        "give-up": give_up,
        "leave": leave,
        "library": library,
        "servers": servers,
        "tools": tools,
        "call": call,
        "cancel": cancel,
    }
    return await guests[args[0]](*args[1:])
