"""`/v1/models`; and `/v1/embeddings`, for models that give embeddings, which none does yet."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from pie_gateway.backend.catalog import Catalog, ModelName
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response
from pie_gateway.problems import Problem
from pie_gateway.schemas.sampling import Name, TokenId

STARTED = int(time.time())
WHEN = datetime.fromtimestamp(STARTED, UTC).isoformat()


class ModelCard(msgspec.Struct):
    """A name that requests may give as `model`."""

    id: str
    created: int
    root: str  # the model itself
    parent: str | None  # the model that an adapter is for
    max_model_len: int  # tokens
    # Anthropic's clients read these.
    display_name: str
    created_at: str
    object: Literal["model"] = "model"
    type: Literal["model"] = "model"
    owned_by: Literal["pie-py"] = "pie-py"


class ModelList(msgspec.Struct):
    """All names."""

    data: list[ModelCard]
    object: Literal["list"] = "list"
    has_more: bool = False


class EmbeddingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for the embeddings of texts."""

    model: Name
    input: str | Annotated[list[str | TokenId | list[TokenId]], msgspec.Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    user: str | None = None


async def models(exchange: Exchange) -> Response:
    """All names that requests may give as `model`."""
    catalog = exchange.backend.catalog
    return json_response(ModelList([await _card(catalog, n) for n in await catalog.names()]))


async def model(exchange: Exchange) -> Response:
    """One of them."""
    catalog = exchange.backend.catalog
    name = await catalog.find(exchange.request.path_params["model"])
    return json_response(await _card(catalog, name))


async def _card(catalog: Catalog, name: ModelName) -> ModelCard:
    longest = (await catalog.describe(name.model))["max_position"]
    parent = None if name.adapter is None else name.model
    return ModelCard(name.id, STARTED, name.model, parent, longest, name.id, WHEN)


async def embeddings(exchange: Exchange) -> Response:
    """Refuses by the model's name: the served families generate text, and give no hidden states."""
    asked = await exchange.read(EmbeddingsRequest)
    return await refuse_embeddings(exchange, asked.model)


async def refuse_embeddings(exchange: Exchange, model: str) -> Response:
    """Refuses embeddings of a model.

    Raises:
        Problem: 400, or 404 if there is no such model.
    """
    name = await exchange.backend.catalog.find(model)
    raise Problem(
        400,
        f"`model`: {name.id} generates text and gives no embeddings",
        param="model",
        code="unsupported_model",
    )
