"""`POST /v1/embeddings`: for models that give embeddings, and none does yet."""

from __future__ import annotations

from starlette.responses import Response

from pie_gateway.http.door import Exchange
from pie_gateway.problems import Problem
from pie_gateway.schemas.embeddings import EmbeddingsRequest


async def embeddings(exchange: Exchange) -> Response:
    """Refuses by the model's name: the served families generate text, and tell no hidden states."""
    asked = await exchange.read(EmbeddingsRequest)
    name = await exchange.backend.catalog.find(asked.model)
    raise Problem(
        400,
        f"`model`: {name.id} generates text and gives no embeddings",
        param="model",
        code="unsupported_model",
    )
