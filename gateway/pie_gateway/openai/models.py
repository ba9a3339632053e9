"""`/v1/models`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal

import msgspec
from starlette.responses import Response

from pie_gateway.backend.catalog import Catalog, ModelName
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response

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


async def models(exchange: Exchange) -> Response:
    """All names that requests may give as `model`, or the first `limit` of them."""
    catalog = exchange.backend.catalog
    names = (await catalog.names())[: exchange.number("limit") or None]
    return json_response(ModelList([await _card(catalog, name) for name in names]))


async def model(exchange: Exchange) -> Response:
    """One of them."""
    catalog = exchange.backend.catalog
    name = await catalog.find(exchange.request.path_params["model"])
    return json_response(await _card(catalog, name))


async def _card(catalog: Catalog, name: ModelName) -> ModelCard:
    longest = (await catalog.describe(name.model))["max_position"]
    parent = None if name.adapter is None else name.model
    return ModelCard(name.id, STARTED, name.model, parent, longest, name.id, WHEN)
