"""The OpenAPI description says what the gateway does: requests made from it find no other status.

`PIE_PY_CASES=500 pytest -s tests/gateway/test_openapi.py` tries so many for each operation, some
10 000 in all, and says how many; the suite tries a few.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import schemathesis.checks
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi import checks
from support.gateways import Gateway
from support.servers import Server

from pie_gateway.openapi import description
from pie_gateway.schemas.anthropic import CountRequest, MessagesRequest
from pie_gateway.schemas.chat import ChatRequest
from pie_gateway.schemas.completions import CompletionRequest
from pie_gateway.schemas.responses import ResponsesRequest
from pie_gateway.schemas.sampling import ALIASES

CASES = int(os.environ.get("PIE_PY_CASES", "6"))
CHECKS: list[Any] = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
schema = schemathesis.openapi.from_dict(description())


@pytest.fixture(scope="module")
def brief(server: Server) -> Iterator[Gateway]:
    """A gateway that ends long requests: what is made up may ask for thousands of tokens."""
    with Gateway(server, request_seconds=0.3) as gateway:
        yield gateway
        count = gateway.log.count('"event": "request"')
        print(f"\n{count} requests")


@schema.parametrize()
@settings(
    max_examples=CASES,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_operation(case: schemathesis.Case[Any], brief: Gateway) -> None:
    response = case.call(base_url=brief.url, timeout=30)
    assert response.status_code not in (500, 502)
    if response.status_code in (503, 504):
        return  # documented, and what a made-up request may well get
    case.validate_response(response, checks=CHECKS)


PAGE = Path(__file__).parents[2] / "docs/http.md"
GIVEN = {"model", "messages", "prompt", "input", "max_tokens"}  # of every example


def test_each_field_of_a_request_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    told = {part for code in re.findall(r"`([^`\n]+)`", text) for part in re.split(r"[^\w]+", code)}
    requests = (ChatRequest, CompletionRequest, CountRequest, MessagesRequest, ResponsesRequest)
    for request in requests:
        missing = set(request.__struct_fields__) - told - GIVEN
        assert not missing, f"{request.__name__}: docs/http.md does not name {sorted(missing)}"


def test_the_table_of_chat_and_completions_names_fields_alone() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Chat and completions\n")[2]
    rows = [line.split("|")[1] for line in text.partition("\n## ")[0].splitlines() if "|" in line]
    named = {name for row in rows for name in re.findall(r"`(\w+)[^`]*`", row)}
    assert len(named) > 30
    named.remove("usage")  # of answers
    fields = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    assert named > ALIASES.keys()
    unknown = named - fields - ALIASES.keys()
    assert not unknown, f"docs/http.md names {sorted(unknown)}, which no request has"
