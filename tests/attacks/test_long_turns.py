"""No request, however large, keeps the loops that all share for longer than a turn's budget."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from attacks.largest import bodies
from support.gateways import Gateway
from support.servers import Server

from pie_gateway.operations import OPERATIONS


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Server, Gateway]]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        settings = {"log": {"format": "json"}}
        with Server(folder, **settings) as server, Gateway(server, folder) as gateway:
            yield server, gateway


def long_turns(both: tuple[Server, Gateway]) -> list[str]:
    """What has been logged of turns over the budget."""
    return [line for each in both for line in each.log.splitlines() if "a long turn" in line]


def test_no_body_holds_a_loop(both: tuple[Server, Gateway]) -> None:
    before, found = len(long_turns(both)), []
    with both[1].http(limits=httpx2.Limits(max_keepalive_connections=0)) as http:
        for operation in OPERATIONS:
            if operation.body in (None, bytes) or operation.is_form:
                continue
            path = operation.path.replace("{instance}", "none").replace("{program}", "none")
            for field, body in bodies(operation.body):
                status = _ask(http, path, body)
                if status == 500:
                    found.append((path, field, both[1].log[-3000:]))
                if more := long_turns(both)[before:]:
                    found.append((path, field, more))
                    before += len(more)
    assert not found, "\n".join(map(str, found))


def _ask(http: httpx2.Client, path: str, body: Any) -> int:
    content = json.dumps(body, ensure_ascii=False).encode()
    answer = http.post(path, content=content, headers={"content-type": "application/json"})
    return answer.status_code
