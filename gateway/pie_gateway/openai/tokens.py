"""`/tokenize`, `/detokenize` and `/tokenizer_info`, vLLM's."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from pie_gateway.backend.job import Job
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response, while_asked
from pie_gateway.openai.talk import prepare
from pie_gateway.problems import unsupported
from pie_gateway.schemas.chat import ChatRequest, Tool
from pie_gateway.schemas.messages import Messages
from pie_gateway.schemas.sampling import ModelName, TokenId


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, or a conversation."""

    model: ModelName = ""
    prompt: str | None = None
    messages: Messages | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None  # of a text: the one that begins each, true by default
    return_token_strs: bool | None = None


class Tokenized(msgspec.Struct):
    """Tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Tokens whose text is wanted."""

    model: ModelName = ""
    tokens: Annotated[list[TokenId], msgspec.Meta(max_length=1 << 20)]


class Detokenized(msgspec.Struct):
    """Text."""

    prompt: str


async def tokenize(exchange: Exchange) -> Response:
    """The tokens of a text, or of what the chat template makes of a conversation."""
    asked = await exchange.read(TokenizeRequest)
    backend = exchange.backend
    name = await backend.catalog.find(asked.model)
    model = await backend.catalog.describe(name.model)
    words = await backend.vocabulary(name.model)
    if (asked.prompt is None) == (asked.messages is None):
        raise unsupported("prompt", "give it or `messages`")
    if asked.messages is None:
        job = Job(name.model, {}, text=asked.prompt, counts=True, ids=True)
        generation = await exchange.generation("completions", job)
    else:
        talk = await prepare(exchange, _chat(asked, asked.messages), counts=True)
        generation = talk.generation

    async def read() -> list[int]:
        async with generation as running:
            return (await running.prompt()).ids

    tokens = [] if asked.prompt == "" else await while_asked(exchange, read)
    if asked.prompt is not None and asked.add_special_tokens is False:
        begin = model["bos_token"]
        own = begin is not None and asked.prompt.startswith(words.text_of(begin))
        tokens = tokens[not own and tokens[:1] == [begin] :]
    texts = [words.text_of(token) for token in tokens] if asked.return_token_strs else None
    return json_response(Tokenized(len(tokens), model["max_position"], tokens, texts))


async def tokenizer_info(exchange: Exchange) -> Response:
    """The texts of the tokens that begin and end a text of a model: lm-eval asks for them."""
    backend = exchange.backend
    name = await backend.catalog.find(exchange.request.query_params.get("model", ""))
    model = await backend.catalog.describe(name.model)
    words = await backend.vocabulary(model["name"])
    begin, ends = model["bos_token"], model["stop_tokens"]
    told = {
        "tokenizer_class": "pie_py",
        "bos_token": None if begin is None else words.text_of(begin),
        "eos_token": words.text_of(ends[0]) if ends else None,
    }
    return json_response(told)


def _chat(asked: TokenizeRequest, messages: Messages) -> ChatRequest:
    return ChatRequest(
        model=asked.model,
        messages=messages,
        tools=[*asked.tools] if asked.tools else None,
        chat_template_kwargs=asked.chat_template_kwargs,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        return_token_ids=True,
    )


async def detokenize(exchange: Exchange) -> Response:
    """The text of tokens; what is no whole character shows as U+FFFD."""
    asked = await exchange.read(DetokenizeRequest)
    name = await exchange.backend.catalog.find(asked.model)
    words = await exchange.backend.vocabulary(name.model)
    rows: int = (await exchange.backend.catalog.describe(name.model))["vocab_size"]

    def made() -> Response:
        words.check("tokens", asked.tokens, rows)
        text = b"".join(map(words.bytes_of, asked.tokens)).decode(errors="replace")
        return json_response(Detokenized(text))

    return await exchange.by_size(made)
