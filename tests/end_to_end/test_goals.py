"""Goals of whole programs, by all ways to launch one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from support.gateways import Gateway
from support.servers import NO_MODEL, Server

from pie_py.cli import main
from pie_py.client import RpcError
from pie_py.client.sync import Client

WAITS = b"""
from inferlet import runtime, session

async def main(args):
    session.send("on")
    await (runtime.launch("waits") if args else session.receive())
"""
SAYS = b"""
async def main(args):
    return "said"
"""
SECOND = 1_000_000_000  # nanoseconds


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    goals = {"nightly": {"objective": "throughput", "expected_tokens": 7}}
    with Server(goals=goals, **NO_MODEL) as server, server.client() as client:
        for program, source in (("waits", WAITS), ("says", SAYS), ("nightly", SAYS)):
            client.upload(source, program)
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


def of(client: Client, program: str, **wanted: Any) -> dict[str, Any]:
    """The newest instance of a program, alive or ended."""
    found = [each for each in client.instances(ended=True) if each["program"] == program]
    return [each for each in found if each.items() >= wanted.items()][-1]


def test_a_launch_has_a_goal_and_so_have_its_children(client: Client) -> None:
    goal: dict[str, Any] = {"objective": "latency", "expected_tokens": 90}
    parent = client.launch("waits", ["child"], deadline=3600, **goal)
    assert parent.receive() == "on"
    found = of(client, "waits", id=parent.id)
    assert found.items() >= goal.items()
    assert found["deadline_ns"] == found["created_ns"] + 3600 * SECOND
    assert not found["late"]
    child = of(client, "waits", parent=parent.id)
    while child["parent"] != parent.id:
        child = of(client, "waits", parent=parent.id)
    assert (child["objective"], child["expected_tokens"]) == ("latency", None)
    assert abs(child["deadline_ns"] - found["deadline_ns"]) < SECOND
    parent.cancel()


@pytest.mark.parametrize("seconds", [0.0, 1e12, 1e300, float("nan"), float("inf")])
def test_a_deadline_that_has_no_date_is_refused(client: Client, seconds: float) -> None:
    with pytest.raises(RpcError, match="deadline"):
        client.launch("waits", deadline=seconds)
    assert client.instances(ended=True) is not None


def test_programs_have_goals_by_name_and_a_launch_s_own_comes_first(client: Client) -> None:
    client.launch("nightly").result()
    assert of(client, "nightly")["objective"] == "throughput"
    client.launch("nightly", objective="latency").result()
    found = of(client, "nightly")
    assert (found["objective"], found["expected_tokens"]) == ("latency", 7)


def test_what_is_late_goes_on_and_is_told(server: Server, client: Client) -> None:
    late = client.launch("waits", deadline=1e-6)
    assert late.receive() == "on"
    with Gateway(server) as gateway:
        shown = CliRunner().invoke(main, ["ps", "--json", "--endpoint", server.endpoint])
        [told] = [each for each in json.loads(shown.stdout) if each["id"] == late.id]
        assert told["late"]
        before = client.server_info()["deadlines_missed"]
        late.send("end")
        late.result()
        assert of(client, "waits", id=late.id)["late"]
        assert client.server_info()["deadlines_missed"] == before + 1
        with gateway.http() as http:
            assert f"pie_deadlines_missed_total {before + 1}.0" in http.get("/metrics").text


def test_goals_on_the_command_line(server: Server, client: Client) -> None:
    goal = ["--objective", "throughput", "--deadline", "60", "--expected-tokens", "5"]
    for command in (["run", "says"], ["launch", "says"]):
        shown = CliRunner().invoke(main, [*command, *goal, "--endpoint", server.endpoint])
        assert shown.exit_code == 0, shown.output
        found = of(client, "says")
        assert (found["objective"], found["expected_tokens"]) == ("throughput", 5)
        assert found["deadline_ns"] == found["created_ns"] + 60 * SECOND


def test_goals_over_http(server: Server, client: Client) -> None:
    goal = {"objective": "throughput", "deadline": 60.5, "expected_tokens": 5}
    with Gateway(server) as gateway, gateway.http() as http:
        assert http.post("/v1/inferlets/says", json=goal).json()["result"] == "said"
        first = of(client, "says")
        answer = http.post("/v1/instances", json={"program": "says", **goal})
        second = of(client, "says", id=answer.json()["id"])
        for found in (first, second):
            assert (found["objective"], found["expected_tokens"]) == ("throughput", 5)
            assert found["deadline_ns"] == found["created_ns"] + round(60.5 * SECOND)
        card = http.get(f"/v1/instances/{second['id']}").json()
        assert (card["objective"], card["late"]) == ("throughput", False)
        assert http.post("/v1/inferlets/says", json={"objective": "fast"}).status_code == 400
        cases: list[tuple[dict[str, Any], str | None, int | None]] = [
            ({"agent_hints": {"osl": 9, "priority": 5}}, "latency", 18),
            ({"agent_hints": {"priority": -1}}, "throughput", None),
            ({"agent_hints": {"latency_sensitivity": 0.5}}, "latency", None),
            ({"agent_hints": {"osl": "many", "priority": None}}, None, None),
        ]
        for path, text in (
            ("/v1/completions", {"prompt": "Once"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once"}]}),
        ):
            for nvext, objective, tokens in cases:
                asked = {**text, "max_tokens": 2, "n": 2, "nvext": nvext}
                assert http.post(path, json=asked).status_code == 200
                newest = client.instances(ended=True)[-1]
                assert (newest["objective"], newest["expected_tokens"]) == (objective, tokens)


def test_a_durable_instance_keeps_its_goal(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("g")
    with Server(folder, **NO_MODEL) as server, server.client() as client:
        client.upload(WAITS, "waits")
        goes_on = client.launch("waits", durable=True, deadline=3600, objective="throughput")
        assert goes_on.receive() == "on"
        before = of(client, "waits")
    with Server(folder, **NO_MODEL) as server, server.client() as client:
        after = of(client, "waits", id=goes_on.id)
        assert after["objective"] == before["objective"] == "throughput"
        assert abs(after["deadline_ns"] - before["deadline_ns"]) < SECOND


def test_a_goal_that_is_none_is_refused(client: Client) -> None:
    cases: list[dict[str, Any]] = [{"objective": "fast"}, {"deadline": 0.0}, {"expected_tokens": 0}]
    for wrong in cases:
        with pytest.raises(RpcError, match="invalid-argument"):
            client.launch("says", **wrong)
