"""Embeddings of texts, their likeness, and what a model's head says of them."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from pie_gateway.backend.catalog import ModelName
from pie_gateway.backend.job import EmbeddingJob, Piece
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response, while_asked
from pie_gateway.openai.completions import Prompt, prompts_of
from pie_gateway.problems import unsupported
from pie_gateway.schemas import embeddings as schema

Vectors = NDArray[np.float32]
Asked = TypeVar("Asked", bound=schema.TextsRequest)


@dataclass(frozen=True)
class Found:
    """The results of a model for texts."""

    name: ModelName
    vectors: Vectors  # [n, width]
    usage: schema.EmbeddingsUsage
    warning: schema.Warned


async def embeddings(exchange: Exchange) -> Response:
    """The embeddings of texts."""
    asked, texts = await _read(exchange, schema.EmbeddingsRequest)
    most = asked.truncate_prompt_tokens
    found = await embed(exchange, asked.model, texts, most, asked.dimensions)
    coded = asked.encoding_format == "base64"
    data = [
        schema.Embedding(at, b64encode(vector.tobytes()).decode() if coded else vector.tolist())
        for at, vector in enumerate(unit(found.vectors))
    ]
    return _listed(exchange, "embd", found, data)


async def score(exchange: Exchange) -> Response:
    """How well texts go together: by a cross-encoder, or the cosine of their embeddings."""
    asked = await exchange.read(schema.ScoreRequest)
    first, second = ([t] if isinstance(t, str) else t for t in (asked.text_1, asked.text_2))
    if len(first) not in (1, len(second)) or len(first) + len(second) > schema.MAX_TEXTS:
        raise unsupported(
            "text_1", f"one text, or as many as `text_2` has; {schema.MAX_TEXTS} at most together"
        )
    most = asked.truncate_prompt_tokens
    found, values = await compare(exchange, asked.model, first, second, most)
    scores = [schema.Score(at, value) for at, value in enumerate(values.tolist())]
    return _listed(exchange, "score", found, scores)


async def rerank(exchange: Exchange) -> Response:
    """Documents in the order of their scores with a query."""
    asked = await exchange.read(schema.RerankRequest)
    texts = [each if isinstance(each, str) else each.text for each in asked.documents]
    most = asked.truncate_prompt_tokens or asked.max_tokens_per_doc
    found, values = await compare(exchange, asked.model, [asked.query], texts, most)
    best = np.argsort(-values, kind="stable")[: asked.top_n].tolist()
    shown = asked.return_documents is not False
    results = [
        schema.Ranked(at, float(values[at]), schema.DocumentText(texts[at]) if shown else None)
        for at in best
    ]
    meta: dict[str, Any] = {"billed_units": {"search_units": 1}}
    said = f"rerank-{exchange.id}", found.name.id, results, found.usage, meta
    return json_response(schema.RerankAnswer(*said, warning=found.warning))


async def pooling(exchange: Exchange) -> Response:
    """Vectors that are not normalized; of a model with a head, its numbers."""
    asked, texts = await _read(exchange, schema.TextsRequest)
    task, most = await _task(exchange, asked.model), asked.truncate_prompt_tokens
    found = await embed(exchange, asked.model, texts, most, task=task, raw=True)
    data = [schema.Pooled(at, row) for at, row in enumerate(found.vectors.tolist())]
    return _listed(exchange, "pool", found, data)


async def classify(exchange: Exchange) -> Response:
    """Probabilities of the labels of a model's head."""
    asked, texts = await _read(exchange, schema.TextsRequest)
    most = asked.truncate_prompt_tokens
    found = await embed(exchange, asked.model, texts, most, task="classify")
    labels = (await exchange.backend.catalog.describe(found.name.model))["labels"]
    data = [
        schema.Classified(at, labels[int(row.argmax())], row.tolist(), len(labels))
        for at, row in enumerate(found.vectors)
    ]
    return _listed(exchange, "classify", found, data)


async def _read(exchange: Exchange, kind: type[Asked]) -> tuple[Asked, list[Prompt]]:
    asked = await exchange.read(kind)
    return asked, await exchange.by_size(prompts_of, asked.input, "input", schema.MAX_TEXTS)


def _listed(exchange: Exchange, kind: str, found: Found, data: list[Any]) -> Response:
    said = f"{kind}-{exchange.id}", int(time.time()), found.name.id, data, found.usage
    return json_response(schema.Listed(*said, warning=found.warning))


async def compare(
    exchange: Exchange, model: str, first: list[str], second: list[str], most: int | None
) -> tuple[Found, Vectors]:
    """A model's results for texts, and scores `[n]` of pairs: one text or `n`, and `n` others."""
    if await _task(exchange, model) != "classify":
        found = await embed(exchange, model, [*first, *second], most)
        vectors = unit(found.vectors)
        return found, (vectors[: len(first)] * vectors[len(first) :]).sum(1)
    ones = first * len(second) if len(first) == 1 else first
    pairs = [list(pair) for pair in zip(ones, second, strict=True)]
    found = await embed(exchange, model, pairs, most, task="classify")
    if found.vectors.shape[1] != 1:
        raise unsupported("model", f"{found.name.id} has several labels: use /classify")
    return found, found.vectors[:, 0]


async def embed(
    exchange: Exchange,
    model: str,
    texts: Sequence[str | Sequence[int] | Sequence[str]],
    most: int | None = None,
    dimensions: int | None = None,
    *,
    task: str = "embed",
    raw: bool = False,
) -> Found:
    """Vectors of texts, as the model gives them `[n, width]`, or the first numbers of each. Raises
    `Problem`: the model gives none, not so many numbers, or a text is too long.
    """
    backend = exchange.backend
    name = await backend.catalog.find(model)
    described = await backend.catalog.describe(name.model)
    if (task == "classify") != (described["task"] == "classify"):
        wanted = "classes" if task == "classify" else "embeddings"
        raise unsupported("model", f"{name.id} was not made for {wanted}")
    width = described["hidden_size"]
    if dimensions is not None and dimensions > width:
        raise unsupported("dimensions", f"{name.id} has {width}")
    words = await backend.vocabulary(name.model)

    def check() -> None:
        for text in texts:
            tokens = [each for each in text if isinstance(each, int)]
            words.check("input", tokens, described["vocab_size"])

    await exchange.by_size(check)
    job = EmbeddingJob(name.model, [*texts], name.adapter, most, raw)
    generation = await exchange.generation("embeddings", job)

    async def read() -> tuple[int, list[str]]:
        async with generation as running:
            count = (await running.prompt()).tokens
            return count, [each.text async for each in running.events() if isinstance(each, Piece)]

    count, found = await while_asked(exchange, read)
    vectors = np.stack([np.frombuffer(b64decode(text), "<f4") for text in found])
    warning: schema.Warned = msgspec.UNSET
    if described["task"] not in ("embed", "classify"):
        warning = f"{name.id} was not made for embeddings: these are its hidden states, pooled"
    return Found(name, vectors[:, :dimensions], schema.EmbeddingsUsage(count, count), warning)


async def _task(exchange: Exchange, model: str) -> str:
    catalog = exchange.backend.catalog
    return str((await catalog.describe((await catalog.find(model)).model))["task"])


def unit(vectors: Vectors) -> Vectors:
    """The vectors, of length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Vectors = vectors / np.maximum(lengths, np.float32(1e-12))
    return found
