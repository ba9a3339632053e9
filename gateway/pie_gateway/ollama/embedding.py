"""`/api/embed`, and the older `/api/embeddings`."""

from __future__ import annotations

import time

from starlette.responses import Response

from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response
from pie_gateway.ollama.generating import keep
from pie_gateway.openai.embeddings import embed as vectors_of
from pie_gateway.openai.embeddings import unit
from pie_gateway.problems import unsupported
from pie_gateway.schemas.embeddings import MAX_TEXTS
from pie_gateway.schemas.ollama import (
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaEmbedOneRequest,
    OllamaEmbedRequest,
)


async def embed(exchange: Exchange) -> Response:
    """Embeddings, of length 1; the end of a text that is too long is cut off."""
    begun = time.perf_counter_ns()
    asked = await exchange.read(OllamaEmbedRequest)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if len(texts) > MAX_TEXTS:
        raise unsupported("input", f"{MAX_TEXTS} texts at most")
    if not any(texts):  # is how a model is loaded
        name = await exchange.backend.catalog.find(asked.model)
        await keep(exchange, asked.model, asked.keep_alive)
        return json_response(OllamaEmbeddings(name.id, [], 0, 0, 0))
    most = None if asked.truncate is False else -1
    made = await vectors_of(exchange, asked.model, texts, most, asked.dimensions or None)
    await keep(exchange, asked.model, asked.keep_alive)
    taken = time.perf_counter_ns() - begun
    said = made.name.id, unit(made.vectors).tolist(), taken, 0, made.usage.prompt_tokens
    return json_response(OllamaEmbeddings(*said, warning=made.warning))


async def embed_one(exchange: Exchange) -> Response:
    """The embedding of one text, of any length."""
    asked = await exchange.read(OllamaEmbedOneRequest)
    made = await vectors_of(exchange, asked.model, [asked.prompt], -1)
    return json_response(OllamaEmbedding(made.vectors[0].tolist(), made.warning))
