"""Programs and instances over HTTP."""

from __future__ import annotations

import base64
import json
import time
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import pytest
import websockets
import websockets.sync.client
from support.gateways import Gateway
from support.servers import Server

ECHO = """
from inferlet import session

async def main(args):
    session.send("args: " + " ".join(args))
    if args[:1] == ["fail"]:
        raise ValueError("it was asked to fail")
    if args[:1] == ["hear"]:
        while (text := await session.receive()) != "stop":
            session.send("heard " + text)
        session.send_blob(await session.receive_blob() + b"!")
    print("logged")
    return "the result"
"""
INPUT = """
async def main(input):
    return {"doubled": input["n"] * 2}
"""


@pytest.fixture(scope="module")
def http(gateway: Gateway) -> Iterator[httpx2.Client]:
    with gateway.http() as http:
        for name, source in (("echo", ECHO), ("double", INPUT)):
            card = http.post("/v1/programs", params={"name": name}, content=source.encode())
            assert (card.status_code, card.json()["kind"]) == (201, "python")
        yield http


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def test_programs(http: httpx2.Client) -> None:
    listed = {card["name"]: card for card in http.get("/v1/programs").json()["data"]}
    assert {"echo", "double"} <= set(listed)
    assert http.get("/v1/programs/echo").json() == listed["echo"]
    assert http.get(f"/v1/programs/{listed['echo']['hash']}").json() == listed["echo"]
    assert http.get("/v1/programs/nothing").status_code == 404
    wrong = http.post("/v1/programs", params={"name": "bad"}, content=b"def main(:")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "program_rejected")
    assert http.post("/v1/programs", content=b"x").json()["error"]["param"] == "name"


@pytest.mark.parametrize(
    "name", ["my agent", "émile", "x (1)", "a%20b#?&+", "it's", "日本", "a.b."]
)
def test_a_program_is_called_what_its_file_is(http: httpx2.Client, name: str) -> None:
    path = f"/v1/programs/{quote(name, safe='')}"
    sent = http.post("/v1/programs", params={"name": name}, content=INPUT.encode())
    assert (sent.status_code, sent.json()["name"]) == (201, name)
    assert http.get(path).json() == sent.json()
    run = http.post(path.replace("programs", "inferlets"), json={"input": {"n": 21}}).json()
    assert run["result"] == {"doubled": 42}
    assert run["id"].startswith(f"{name}-")
    told = http.get(f"/v1/instances/{quote(run['id'], safe='')}").json()
    assert (told["id"], told["program"]) == (run["id"], name)
    assert [one["name"] for one in http.delete(path).json()["removed"]] == [name]


def test_an_instance_over_time(http: httpx2.Client) -> None:
    body = {"model": "pie-tiny", "prompt": "Hi", "max_tokens": 3, "ignore_eos": True}
    http.post("/v1/completions", json=body)
    done = http.get("/v1/instances?all=true").json()["data"][-1]["id"]
    told = http.get(f"/v1/instances/{done}/trace").json()
    spans = told["spans"]
    assert (told["open"], told["next"]) == (None, len(spans))
    forwards = [each for each in spans if each["name"] == "forward"]
    assert len(forwards) >= 3
    assert all(each["size"] == 1 and each["device_ns"] > 0 for each in forwards)
    for each in spans:
        assert told["begun_ns"] <= each["begin_ns"] <= each["end_ns"]
    waits = [each for each in spans if each["track"] == "wait"]
    assert waits[0]["name"] == "launch"
    assert all(a["end_ns"] <= b["begin_ns"] for a, b in pairwise(waits))
    rest = http.get(f"/v1/instances/{done}/trace", params={"after": len(spans) - 2}).json()
    assert rest["spans"] == spans[-2:]
    waiting = http.post("/v1/instances", json={"program": "echo", "args": ["hear"]}).json()["id"]
    begins = ("launch", "other programs")
    while (found := http.get(f"/v1/instances/{waiting}/trace").json())["open"]["name"] in begins:
        pass
    assert (found["open"]["name"], found["ended_ns"]) == ("client of echo", None)
    http.delete(f"/v1/instances/{waiting}")
    assert http.get("/v1/instances/none/trace").status_code == 404


def test_programs_are_removed(http: httpx2.Client) -> None:
    for source in ("# former\n" + ECHO, "# present\n" + ECHO):
        http.post("/v1/programs", params={"name": "passing"}, content=source.encode())
    body = {"program": "passing", "args": ["hear"]}
    instance = http.post("/v1/instances", json=body).json()["id"]
    busy = http.delete("/v1/programs/passing")
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "busy")
    assert instance in busy.json()["error"]["message"]
    assert http.delete("/v1/programs/passing?force=maybe").status_code == 400
    removed = http.delete("/v1/programs/passing?force=true").json()["removed"]
    assert [card["name"] for card in removed] == ["passing", "passing"]
    assert http.get(f"/v1/instances/{instance}").json()["state"] == "killed"
    assert http.delete("/v1/programs/passing").status_code == 404


def test_the_programs_of_routes_come_back_when_they_are_removed(http: httpx2.Client) -> None:
    body = {"model": "pie-tiny", "prompt": "Hi", "max_tokens": 1}
    assert http.post("/v1/completions", json=body).status_code == 200
    assert http.delete("/v1/programs/gateway-chat").status_code == 200
    assert http.post("/v1/completions", json=body).status_code == 200


def test_a_program_of_a_route_comes_back_for_many_at_once(
    gateway: Gateway, http: httpx2.Client
) -> None:
    place = urlsplit(gateway.url)
    body = json.dumps({"model": "pie-tiny", "input": "Hi"})
    request = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(body)}\r\n"
    )
    packed = f"{request}Content-Type: application/json\r\nConnection: close\r\n\r\n{body}".encode()
    assert http.post("/v1/embeddings", content=body).status_code == 200
    assert http.delete("/v1/programs/gateway-embedding").status_code == 200
    with ExitStack() as stack:
        sockets = [stack.enter_context(gateway.connect()) for _ in range(16)]
        for each in sockets:  # all but the end, so that they come at once
            each.sendall(packed[:-1])
        time.sleep(0.2)
        for each in sockets:
            each.sendall(packed[-1:])
        assert [each.recv(15) for each in sockets] == [b"HTTP/1.1 200 OK"] * 16


def test_a_program_is_run(http: httpx2.Client) -> None:
    told = events(http.post("/v1/inferlets/echo", json={"args": ["a", "b"], "stream": True}).text)
    assert [each["type"] for each in told] == ["instance", "text", "end"]
    assert told[1]["text"] == "args: a b"
    assert told[2] == {"type": "end", "state": "finished", "text": "the result"}
    whole = http.post("/v1/inferlets/double", json={"input": {"n": 21}}).json()
    assert whole["result"] == {"doubled": 42}
    failed = http.post("/v1/inferlets/echo", json={"args": ["fail"]})
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "program_failed")
    assert "it was asked to fail" in failed.json()["error"]["message"]
    assert http.post("/v1/inferlets/nothing", json={}).status_code == 404
    heard = {"args": ["hear"], "messages": ["x", "stop"], "stream": True}
    with http.stream("POST", "/v1/inferlets/echo", json=heard) as stream:
        lines = stream.iter_lines()
        identity = json.loads(next(lines)[6:])["id"]
        assert http.delete(f"/v1/instances/{identity}").json() == {"killed": True}
        assert '"state":"killed"' in "".join(lines)


OPTIONS = """
async def main(prompt: str, count: int = 2, tags: list[str] = [], loud: bool = True, x=0.5):
    return {"prompt": prompt, "count": count, "tags": tags, "loud": loud, "x": x}
"""


def test_fields_are_the_parameters_of_main(http: httpx2.Client) -> None:
    http.post("/v1/programs", params={"name": "options"}, content=OPTIONS.encode())
    given = {"prompt": "- oh", "count": 3, "tags": ["a", "-b"], "loud": False, "x": None}
    answer = http.post("/v1/inferlets/options", json=given).json()
    assert answer["result"] == {**given, "x": 0.5}
    for wrong, told in (({"promt": "x"}, "prompt"), ({"prompt": "x", "count": "y"}, "count")):
        refused = http.post("/v1/inferlets/options", json=wrong)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "usage")
        assert told in refused.json()["error"]["message"]


def test_an_instance_lives_without_a_client(http: httpx2.Client) -> None:
    made = http.post("/v1/instances", json={"program": "echo", "args": ["hear"]})
    assert made.status_code == 201
    path = f"/v1/instances/{made.json()['id']}"
    assert http.get(path).json()["state"] == "running"
    assert made.json()["id"] in {card["id"] for card in http.get("/v1/instances").json()["data"]}
    for text in ("one", "stop"):
        assert http.post(f"{path}/messages", json={"text": text}).status_code == 200
    data = base64.b64encode(b"bytes").decode()
    assert http.post(f"{path}/messages", json={"base64": data}).status_code == 200
    assert http.get(f"{path}/result").json()["text"] == "the result"
    told = events(http.get(f"{path}/events").text)
    assert [each.get("text") for each in told[1:3]] == ["args: hear", "heard one"]
    assert base64.b64decode(told[3]["base64"]) == b"bytes!"
    assert http.get(f"{path}/log").json()["lines"][0]["text"] == "logged"
    assert http.delete(path).json() == {"killed": False}
    assert http.post(f"{path}/messages", json={"text": "late"}).status_code == 409
    assert http.post(f"{path}/messages", json={}).status_code == 400
    assert http.get("/v1/instances/nothing/result").status_code == 404
    listed = http.get("/v1/instances", params={"all": "true"}).json()["data"]
    assert {"finished", "killed"} <= {card["state"] for card in listed}


def test_a_durable_instance_outlives_its_request(server: Server, http: httpx2.Client) -> None:
    body = {"args": ["hear"], "durable": True, "stream": True}
    with http.stream("POST", "/v1/inferlets/echo", json=body) as answer:
        lines = answer.iter_lines()
        begun = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
        assert next(line for line in lines if "args: hear" in line)
    with server.client() as client:
        assert client.calls(begun["id"])
        client.send(begun["id"], "stop")
        client.send(begun["id"], b"bytes")
        assert client.result(begun["id"]) == "the result"
    path = f"/v1/instances/{begun['id']}"
    calls = http.get(f"{path}/calls").json()
    numbers = [call["number"] for call in calls["data"]]
    assert numbers == list(range(1, calls["next"] + 1))
    rest = http.get(f"{path}/calls", params={"after": numbers[-1] - 1}).json()
    assert rest == {"data": calls["data"][-1:], "next": calls["next"]}
    heard = next(c["number"] for c in calls["data"] if c["call"] == "session.receive")
    made = http.post(f"{path}/branch", json={"call": heard - 1})
    assert made.status_code == 201
    branch = f"/v1/instances/{made.json()['id']}"
    http.post(f"{branch}/messages", json={"text": "otherwise"})
    with http.stream("GET", f"{branch}/events") as answer:
        assert any("heard otherwise" in line for line in answer.iter_lines())
    http.delete(branch)
    for sent, status in (({"call": -1}, 400), ({"call": 1, "args": ["x"], "at": 1}, 400)):
        assert http.post(f"{path}/branch", json=sent).status_code == status
    assert http.post("/v1/instances/none/branch", json={"call": 1}).status_code == 404


def test_a_mark_of_windows_before_arguments_is_none_of_them(http: httpx2.Client) -> None:
    marked = http.post("/v1/inferlets/double", content=BOM_UTF8 + b'{"input": {"n": 21}}')
    assert (marked.status_code, marked.json()["result"]) == (200, {"doubled": 42})


def test_a_two_way_session(gateway: Gateway, http: httpx2.Client) -> None:
    url = gateway.url.replace("http", "ws") + "/v1/inferlets/{}/session"
    with websockets.sync.client.connect(url.format("echo")) as socket:
        socket.send(json.dumps({"args": ["hear"]}))
        assert json.loads(socket.recv())["type"] == "instance"
        assert json.loads(socket.recv())["text"] == "args: hear"
        socket.send("you")
        assert json.loads(socket.recv())["text"] == "heard you"
        socket.send("stop")
        socket.send(b"\0\1")
        assert socket.recv() == b"\0\1!"
        assert json.loads(socket.recv()) == {
            "type": "end",
            "state": "finished",
            "text": "the result",
        }
        with pytest.raises(websockets.ConnectionClosedOK):
            socket.recv()
    for program, first in (("nothing", "{}"), ("echo", "["), ("echo", '{"args":[1]}')):
        with websockets.sync.client.connect(url.format(program)) as socket:
            socket.send(first)
            with pytest.raises(websockets.ConnectionClosedError) as closed:
                socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
    with websockets.sync.client.connect(url.format("echo")) as socket:
        socket.send(json.dumps({"args": ["hear"]}))
        identity = json.loads(socket.recv())["id"]
    assert http.get(f"/v1/instances/{identity}/result").json()["state"] == "killed"


def test_a_message_that_is_refused_ends_a_session(gateway: Gateway, http: httpx2.Client) -> None:
    url = gateway.url.replace("http", "ws") + "/v1/inferlets/echo/session"
    with websockets.sync.client.connect(url) as socket:
        socket.send(json.dumps({"args": ["hear"]}))
        identity = json.loads(socket.recv())["id"]
        assert json.loads(socket.recv())["text"] == "args: hear"
        socket.send("x" * (3 << 20))
        with pytest.raises(websockets.ConnectionClosedError, match="send it in parts"):
            socket.recv(timeout=30)
    assert http.get(f"/v1/instances/{identity}/result").json()["state"] == "killed"


def test_a_client_that_leaves_before_a_full_mailbox_ends_its_session(server: Server) -> None:
    source = "from inferlet import session\nasync def main(): await session.receive_blob()\n"
    with Gateway(server, quiet_seconds=0.5) as gateway, gateway.http() as http:
        http.post("/v1/programs", params={"name": "deaf"}, content=source.encode())
        url = gateway.url.replace("http", "ws") + "/v1/inferlets/deaf/session"
        with websockets.sync.client.connect(url, close_timeout=0.1) as socket:
            socket.send("{}")
            identity = json.loads(socket.recv())["id"]
            for _ in range(18):  # MiB, of 16 that the mailbox has
                socket.send("x" * (1 << 20))
            with pytest.raises(TimeoutError):  # it is not cut off as it waits
                socket.recv(timeout=2)
        ended = http.get(f"/v1/instances/{identity}/result", timeout=30).json()
        assert ended["state"] == "killed"


def test_the_server_tells_of_itself(http: httpx2.Client) -> None:
    assert http.get("/v1/server").json()["models"] == ["pie-tiny", "tools"]
    assert "pie-tiny" in http.get("/v1/stats").json()


def test_a_silence_of_a_stream_is_broken_by_comments(server: Server, http: httpx2.Client) -> None:
    source = "import asyncio\nasync def main(): await asyncio.sleep(1)\n"
    http.post("/v1/programs", params={"name": "slow"}, content=source.encode())
    with Gateway(server, quiet_seconds=0.1) as gateway, gateway.http() as quick:
        text = quick.post("/v1/inferlets/slow", json={"stream": True}).text
        assert text.count(": waiting\n\n") > 1
        assert events(text)[-1]["state"] == "finished"
        missing = quick.post("/v1/inferlets/nothing", json={"stream": True})
        assert missing.status_code == 404
        turn = [{"role": "user", "content": "Hi"}]
        body = {"model": "pie-tiny", "messages": turn, "max_tokens": 900, "stream": True}
        assert '"message_stop"' in quick.post("/v1/messages", json=body).text
