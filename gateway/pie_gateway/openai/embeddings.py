"""Embeddings of texts, and their likeness: hidden states of the served model, pooled."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from pie_gateway.backend.catalog import ModelName
from pie_gateway.backend.job import EmbeddingJob, Piece
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response, while_asked
from pie_gateway.openai.completions import prompts_of
from pie_gateway.problems import unsupported
from pie_gateway.schemas.embeddings import (
    MAX_TEXTS,
    DocumentText,
    Embedding,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    EmbeddingsUsage,
    Ranked,
    RerankAnswer,
    RerankRequest,
    Score,
    ScoreAnswer,
    ScoreRequest,
)

Vectors = NDArray[np.float32]


async def embeddings(exchange: Exchange) -> Response:
    """The embeddings of texts."""
    asked = await exchange.read(EmbeddingsRequest)
    texts = await exchange.by_size(prompts_of, asked.input, "input", MAX_TEXTS)
    name, vectors, usage = await embed(
        exchange, asked.model, texts, asked.truncate_prompt_tokens, asked.dimensions
    )
    coded = asked.encoding_format == "base64"
    data = [
        Embedding(at, b64encode(vector.tobytes()).decode() if coded else vector.tolist())
        for at, vector in enumerate(unit(vectors))
    ]
    return json_response(EmbeddingsAnswer(data, name.id, usage))


async def score(exchange: Exchange) -> Response:
    """How alike texts are: the cosine of their embeddings."""
    asked = await exchange.read(ScoreRequest)
    first, second = ([t] if isinstance(t, str) else t for t in (asked.text_1, asked.text_2))
    if len(first) not in (1, len(second)) or len(first) + len(second) > MAX_TEXTS:
        raise unsupported(
            "text_1", f"one text, or as many as `text_2` has; {MAX_TEXTS} at most together"
        )
    name, vectors, usage = await embed(
        exchange, asked.model, [*first, *second], asked.truncate_prompt_tokens
    )
    vectors = unit(vectors)
    found = (vectors[: len(first)] * vectors[len(first) :]).sum(1)
    scores = [Score(at, value) for at, value in enumerate(found.tolist())]
    answer = ScoreAnswer(f"score-{exchange.id}", int(time.time()), name.id, scores, usage)
    return json_response(answer)


async def rerank(exchange: Exchange) -> Response:
    """Documents in the order of the cosine of their embeddings with a query's."""
    asked = await exchange.read(RerankRequest)
    texts = [each if isinstance(each, str) else each.text for each in asked.documents]
    most = asked.truncate_prompt_tokens or asked.max_tokens_per_doc
    name, vectors, usage = await embed(exchange, asked.model, [asked.query, *texts], most)
    vectors = unit(vectors)
    found = vectors[1:] @ vectors[0]
    best = np.argsort(-found, kind="stable")[: asked.top_n].tolist()
    shown = asked.return_documents is not False
    results = [
        Ranked(at, float(found[at]), DocumentText(texts[at]) if shown else None) for at in best
    ]
    meta: dict[str, Any] = {"billed_units": {"search_units": 1}}
    return json_response(RerankAnswer(f"rerank-{exchange.id}", name.id, results, usage, meta))


async def embed(
    exchange: Exchange,
    model: str,
    texts: list[str] | list[str | list[int]],
    most: int | None = None,
    dimensions: int | None = None,
) -> tuple[ModelName, Vectors, EmbeddingsUsage]:
    """Vectors of texts, as the model gives them `[n, hidden]`, or the first numbers of each. Raises
    `Problem`: the model gives none, not so many numbers, or a text is too long.
    """
    backend = exchange.backend
    name = await backend.catalog.find(model)
    described = await backend.catalog.describe(name.model)
    width = described["hidden_size"]
    if dimensions is not None and dimensions > width:
        raise unsupported("dimensions", f"{name.id} has {width}")
    words = await backend.vocabulary(name.model)

    def check() -> None:
        for text in texts:
            words.check("input", text if isinstance(text, list) else (), described["vocab_size"])

    await exchange.by_size(check)
    job = EmbeddingJob(name.model, [*texts], name.adapter, most)
    generation = await exchange.generation("embeddings", job)

    async def read() -> tuple[int, list[str]]:
        async with generation as running:
            count = (await running.prompt()).tokens
            return count, [each.text async for each in running.events() if isinstance(each, Piece)]

    count, found = await while_asked(exchange, read)
    vectors = np.stack([np.frombuffer(b64decode(text), "<f4") for text in found])
    return name, vectors[:, :dimensions], EmbeddingsUsage(count, count)


def unit(vectors: Vectors) -> Vectors:
    """The vectors, of length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Vectors = vectors / np.maximum(lengths, np.float32(1e-12))
    return found
