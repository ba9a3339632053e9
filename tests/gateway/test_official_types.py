"""Every field of the installed official clients' types, at every depth: it is taken, or refused by
its own name or that of what it stands in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from types import NoneType
from typing import Annotated, Any, Literal, NotRequired, Required, get_args, get_origin

import msgspec
import pytest
from anthropic.types.beta.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from openai.types.batch_create_params import BatchCreateParams
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsBase as ChatCreateParamsBase,
)
from openai.types.completion_create_params import CompletionCreateParamsBase
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from typing_extensions import get_type_hints, is_typeddict

from pie_gateway.anthropic import messages as of_anthropic
from pie_gateway.batches.endpoints import BatchRequest
from pie_gateway.http.reading import parse
from pie_gateway.openai import responses as of_responses
from pie_gateway.problems import Problem
from pie_gateway.schemas.anthropic import CountRequest, MessagesRequest
from pie_gateway.schemas.chat import ChatRequest
from pie_gateway.schemas.completions import CompletionRequest
from pie_gateway.schemas.embeddings import EmbeddingsRequest
from pie_gateway.schemas.responses import ResponsesRequest

REQUIRED: Any = Required
Way = tuple[str, ...]  # names of fields, the outermost first


def converted(asked: Any) -> Any:
    """As the endpoints read it, before a model is looked at."""
    if isinstance(asked, ResponsesRequest):
        return of_responses.chat_request(asked, of_responses.items_of(asked))
    return of_anthropic.chat_request(asked) if isinstance(asked, CountRequest) else asked


def refusal(body: Any, ours: Any) -> str | None:
    """The name of the field that a body is refused for, if it is."""
    try:
        converted(parse(msgspec.json.encode(body), ours))
    except Problem as error:
        problem = error
    else:
        return None
    assert problem.status == 400
    assert problem.param
    assert f"`{problem.param}`" in problem.message
    return problem.param


def kinds_of(kind: Any) -> list[Any]:
    """The kinds that a value may be of."""
    origin: Any = get_origin(kind)
    inner = get_args(kind)
    if origin in (Required, NotRequired, Annotated):
        return kinds_of(inner[0])
    if origin in (None, Literal, list, dict) or origin.__module__ == "collections.abc":
        return [kind]
    return [found for each in inner for found in kinds_of(each)]


def smallest(kind: Any) -> Any:
    """A value of a kind, with no more than it has to have."""
    kind = kinds_of(kind)[0]
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        least = {name: smallest(of) for name, of in hints.items() if get_origin(of) is REQUIRED}
        return {"input": "x", **least} if "previous_response_id" in hints else least
    return next(values(kind))


def values(kind: Any) -> Iterator[Any]:
    """Values of a kind that is no object of known fields."""
    origin: Any = get_origin(kind)
    if origin is Literal:
        yield from get_args(kind)
    elif origin is dict:
        yield {"1": smallest(get_args(kind)[1])}
    elif origin is not None:
        yield [smallest(get_args(kind)[0])]
    else:
        yield from {bool: (False, True), int: (1,), float: (0.5,)}.get(kind, ("x",))


def bodies(
    kind: Any, ours: Any, whole: Callable[[Any], Any], way: Way = (), within: Any = frozenset()
) -> Iterator[tuple[Way, Any]]:
    """Bodies with one field more than they have to have, and the way to it; `whole` makes a body of
    a value of the kind. Nothing is added within a value that is refused.
    """
    for each in kinds_of(kind):
        if is_typeddict(each):
            if each in within:
                continue
            least = smallest(each)
            yield way, whole(least)
            if refusal(whole(least), ours) is None:
                for name, of in get_type_hints(each, include_extras=True).items():
                    more = partial(with_field, whole, least, name)
                    yield from bodies(of, ours, more, (*way, name), within | {each})
        elif get_origin(each) not in (None, Literal, dict):
            yield from bodies(get_args(each)[0], ours, lambda value: whole([value]), way, within)
        elif each is not NoneType:
            yield from ((way, whole(value)) for value in values(each))


def with_field(whole: Callable[[Any], Any], least: Any, name: str, value: Any) -> Any:
    return whole({**least, name: value})


APIS = {
    "chat": (ChatCreateParamsBase, ChatRequest),
    "completions": (CompletionCreateParamsBase, CompletionRequest),
    "responses": (ResponseCreateParamsBase, ResponsesRequest),
    "input_tokens": (InputTokenCountParams, ResponsesRequest),
    "messages": (MessageCreateParamsBase, MessagesRequest),
    "count_tokens": (MessageCountTokensParams, CountRequest),
    "embeddings": (EmbeddingCreateParams, EmbeddingsRequest),
    "batches": (BatchCreateParams, BatchRequest),
}


# Fields of which no value is taken but null: they ask for effects that there are not.
REFUSED = {
    "chat": {"audio", "functions", "moderation", "prediction"},
    "responses": {"context_management", "conversation", "moderation", "prompt", "top_logprobs"},
    "messages": {
        *("billing_policy", "compaction", "fallback_credit_token", "fallbacks", "mcp_servers"),
        "inference_geo",  # but for "global"
    },
    "input_tokens": {"conversation", "personality"},
    "count_tokens": {"billing_policy", "compaction", "mcp_servers"},
    "batches": {"output_expires_after"},
}


@pytest.mark.parametrize("api", APIS)
def test_each_field_is_taken_or_refused_by_name(api: str) -> None:
    theirs, ours = APIS[api]
    taken: set[str] = set()
    refused: set[str] = set()
    for way, body in bodies(theirs, ours, lambda value: value):
        found = refusal(body, ours)
        (taken if found is None else refused).update(way[:1])
        if found is not None:
            named = tuple(re.sub(r"\[(\d*|\.\.\.)\]", "", found).split("."))
            named = named[:-1] if named[-1] == "type" else named
            assert way[: len(named)] == named or named[: len(way)] == way, (way, found)
    assert refused - taken == REFUSED.get(api, set())
    assert taken | refused == {*get_type_hints(theirs)}
