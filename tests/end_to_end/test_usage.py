"""The ledger: what programs have used is told after their end, and bounded by budgets."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from click.testing import CliRunner
from support.gateways import Gateway
from support.servers import Server, until

from pie_py.cli import main
from pie_py.client import InferletFailed, RpcError
from pie_py.client.sync import Client

TEXT = "Once upon a time there was a very small house in the middle of a very large wood."
WRITES = f"""
from inferlet import Context, Model, runtime

async def main(args):
    context = Context(Model.load())
    context.fill({TEXT!r})
    if args:
        await runtime.launch("writes")
    return await context.generate(max_tokens=8).collect_text()
""".encode()
SPINS = b"""
from inferlet import session

async def main(args):
    session.send("on")
    while True:
        pass
"""


def of(client: Client, **wanted: str) -> dict[str, Any]:
    [row] = [each for each in client.usage() if each.items() >= wanted.items()]
    return row


@pytest.mark.nightly
def test_what_was_used_is_kept_by_program_and_tag(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("u")
    with Server(folder) as server, server.client() as client:
        client.upload(WRITES, "writes")
        client.upload(b"async def main(args):\n    return 'x' * 4_000_000", "long")
        client.launch("writes").result()
        last = client.launch("writes", ["child"], tag="ann")
        last.result()
        plain, tagged = of(client, program="writes", tag=""), of(client, tag="ann")
        assert (plain["instances"], tagged["instances"]) == (1, 2), "children have their tag"
        assert (plain["generated_tokens"], tagged["generated_tokens"]) == (8, 16)
        assert plain["cached_tokens"] == 0 < plain["prompt_tokens"]
        asked = tagged["prompt_tokens"] + tagged["cached_tokens"]
        assert tagged["cached_tokens"] > 0
        assert abs(asked - 2 * plain["prompt_tokens"]) <= 4, "of the rest each computes as much"
        assert plain["page_seconds"] > 0 < plain["cpu_seconds"]
        client.await_tools(last.id, ["search"])
        time.sleep(0.2)
        for _ in range(8):  # records that take the place of its own; its wait stays
            client.launch("long").result()
        with pytest.raises(RpcError, match="not-found"):
            client.logs(last.id)
        client.await_tools(last.id, [])
        assert 0.2 <= of(client, tag="ann")["tool_seconds"] < 60
        with Gateway(server, folder) as gateway, gateway.http() as http:
            body = {"model": "pie-tiny", "prompt": TEXT, "max_tokens": 3, "user": "eve"}
            body["ignore_eos"] = True
            assert http.post("/v1/completions", json=body).status_code == 200
        until(lambda: of(client, tag="eve")["generated_tokens"] == 3)
        before = client.usage()
    with Server(folder) as server, server.client() as client:
        assert client.usage() == before
        shown = CliRunner().invoke(main, ["usage", "--json", "--endpoint", server.endpoint])
        assert json.loads(shown.stdout) == before


def test_a_budget_that_is_spent_ends_its_program_by_name(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    budgets = {"spins": {"cpu_seconds": 0.3}, "writes": {"generated_tokens": 8}}
    folder = tmp_path_factory.mktemp("u")
    with Server(folder, budgets=budgets) as server, server.client() as client:
        client.upload(SPINS, "spins")
        with pytest.raises(InferletFailed, match=r"limit-exceeded: spins has used .* of local"):
            client.launch("spins").result()
        with pytest.raises(RpcError, match=r"budget is 0.3 \(budgets.spins.cpu_seconds\)"):
            client.launch("spins")
        client.upload(WRITES, "writes")
        client.upload(b"async def main(args):\n    return 'x' * 4_000_000", "long")
        client.launch("writes").result()

        def is_refused() -> bool:
            try:
                client.launch("writes").result()
            except (RpcError, InferletFailed) as error:
                return "budgets.writes.generated_tokens" in str(error)
            return False

        until(is_refused)
        client.upload(WRITES, "others")
        assert client.launch("others").result()
