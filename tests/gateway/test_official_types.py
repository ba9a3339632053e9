"""What the installed official clients can ask for is known here: served, or refused by its name.

What is new with a client's version, and not yet among the requests, is named here.
"""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsBase as ChatCreateParamsBase,
)
from openai.types.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from pie_gateway.schemas.anthropic import MessagesRequest
from pie_gateway.schemas.chat import ChatRequest
from pie_gateway.schemas.completions import CompletionRequest
from pie_gateway.schemas.responses import ResponsesRequest

UNKNOWN = {
    ChatRequest: {"moderation", "prompt_cache_options"},
    CompletionRequest: set(),
    ResponsesRequest: {
        "access_programs",
        "background_options",
        "context_management",
        "image",
        "moderation",
        "prompt_cache_options",
        "prompt_cache_retention",
    },
    MessagesRequest: {
        "container",
        "diagnostics",
        "inference_geo",
        "speed",
        "user_profile_id",
        "workspace_id",
    },
}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (ChatCreateParamsBase, ChatRequest),
        (CompletionCreateParamsBase, CompletionRequest),
        (ResponseCreateParamsBase, ResponsesRequest),
        (MessageCreateParamsBase, MessagesRequest),
    ],
)
def test_each_field_of_an_official_client_is_known(theirs: Any, ours: Any) -> None:
    assert set(theirs.__annotations__) - set(ours.__struct_fields__) == UNKNOWN[ours]
