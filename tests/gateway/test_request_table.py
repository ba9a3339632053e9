"""The tables of docs/http.md name every field that a request may have, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from pie_gateway.schemas.anthropic import CountRequest, MessagesRequest
from pie_gateway.schemas.chat import ChatRequest
from pie_gateway.schemas.completions import CompletionRequest
from pie_gateway.schemas.responses import ResponsesRequest
from pie_gateway.schemas.sampling import ALIASES

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
