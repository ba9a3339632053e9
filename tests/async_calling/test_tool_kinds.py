"""Tools of every kind, called by a real inferlet."""

from __future__ import annotations

import json
from pathlib import Path

from support.outside_programs import Site
from support.scripts import results, run, script, tool

from pie_py.client.sync import Client

GUESTS = Path(__file__).parent / "guests"


def test_http_tools(client: Client, calling_site: Site) -> None:
    url = calling_site.url
    tools = [
        tool("page", {"kind": "http", "url": f"{url}/a/{{name}}"}, ["name", "day"]),
        tool("person", {"kind": "http", "url": f"{url}/json"}),
        tool("post", {"kind": "http", "url": f"{url}/p", "method": "POST"}, ["x"]),
        tool("gone", {"kind": "http", "url": f"{url}/missing"}),
        tool("large", {"kind": "http", "url": f"{url}/large"}),
        tool("secret", {"kind": "http", "url": "http://example.com/"}),
        tool("echo", {"kind": "simulated", "seconds": 0, "result": "{a}-{b}-{c}"}, ["a", "b"]),
    ]
    calls = script(
        *('a: page(name="x/y z", day=3)', "b: person()", "c: post(x=[1])", "d: gone()"),
        *("e: large()", "f: secret()", "g: page(name=True, day=False)"),
        'h: echo(a="{b}", b=True)',
    )
    found = results(run(client, tools, calls))
    assert json.loads(found["a"]) == "page /a/x%2Fy%20z?day=3 "
    assert json.loads(found["b"]) == {"name": "Ada"}
    assert json.loads(found["c"]) == 'application/json {"x": [1]}'
    assert found["d"].startswith("error: status 404")
    assert found["e"].startswith('"xxxx')
    assert found["f"].startswith("error: permission-denied")
    assert json.loads(found["g"]) == "page /a/true?day=false "
    assert json.loads(found["h"]) == "{b}-true-{c}"


def test_mcp_tools(client: Client) -> None:
    tools = [
        {"type": "mcp", "server": "tools", "allow": ["add", "fail", "find-way"]},
        tool("sky", {"kind": "mcp", "server": "tools", "tool": "weather"}, ["place"]),
        tool("die", {"kind": "mcp", "server": "nothing"}),
    ]
    calls = script(
        *("a: add(a=2, b=3)", "b: fail()", 'c: sky(place="Bern")', "d: die()"),
        'e: find_way(start="Bern")',
    )
    found = results(run(client, tools, calls))
    assert json.loads(found["a"]) in (5, {"result": 5})
    assert "no such luck" in found["b"]
    assert found["b"].startswith("error: ")
    assert "Bern" in found["c"] or json.loads(found["c"])
    assert found["d"].startswith("error: not-found")
    assert "from Bern" in found["e"]


def test_arguments_whose_names_are_none_in_python(client: Client) -> None:
    echo = {"kind": "simulated", "seconds": 0, "result": "{from}, {user-id}, {2nd}, {user_id}"}
    entry = tool("move", echo, ["from", "user-id", "2nd", "user_id"])
    entry["parameters"]["required"] = ["from", "user-id"]
    calls = script('a: move(from_="x", user_id=3, _2nd=True, user_id_=4)')
    found = results(run(client, [entry], calls))
    assert json.loads(found["a"]) == "x, 3, true, 4"


def test_child_inferlets(client: Client) -> None:
    client.upload(GUESTS / "answer_or_fail.py", name="doubler")
    tools = [
        tool("double", {"kind": "inferlet", "program": "doubler"}, ["number"]),
        tool("args", {"kind": "inferlet", "program": "doubler", "args": ["number={n}"]}, ["n"]),
        tool("absent", {"kind": "inferlet", "program": "no-such-program"}),
    ]
    calls = script("a: double(number=4)", "b: double(number=-1)", "c: args(n=5)", "d: absent()")
    found = results(run(client, tools, calls))
    assert json.loads(found["a"]) == {"double": 8}
    assert json.loads(found["c"]) == {"double": 10}
    assert found["b"].startswith("error: failed-dependency")
    assert found["d"].startswith("error: not-found")
