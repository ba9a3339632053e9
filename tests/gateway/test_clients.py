"""Scripts of clients that are not ours, each in an environment of its own: nothing is wrong.

The other tests ask by the official clients in Python; `test_agents.py` has their makers' agents.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.clients import Outcome, names, outcomes, prepared
from support.gateways import Gateway
from support.servers import Server

from pie_py.config.kept_files import cache_folder


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Iterator[Gateway]:
    models = [{"source": str(smollm2), "name": "smollm2", "kv_pages": 512}]
    with Server(models=models) as server, Gateway(server) as gateway, gateway.http() as http:
        while http.get("/v1/models").status_code == 503:  # it loads
            time.sleep(0.2)
        yield gateway


def wrong(gateway: Gateway, command: list[str], model: str) -> list[Outcome]:
    found = list(outcomes(command, gateway.url, model))
    assert "right" in {one.outcome for one in found}
    return [one for one in found if one.outcome == "wrong"]


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("client", names())
def test_all_cases_of_each(gateway: Gateway, real: Gateway, client: str) -> None:
    command = prepared(client, cache_folder() / "clients")
    for where, model in ((gateway, "pie-tiny"), (real, "smollm2")):
        assert wrong(where, command, model) == []
