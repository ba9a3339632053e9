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
from pie_gateway.problems import asked

STARTED = int(time.time())
WHEN = datetime.fromtimestamp(STARTED, UTC).isoformat()


class ModelState(msgspec.Struct):
    """The status of a model, loaded or not, as llama.cpp's clients read it."""

    value: Literal["loaded", "loading", "unloaded"]


class ModelCard(msgspec.Struct):
    """A name that requests may give as `model`."""

    id: str
    created: int
    root: str  # the model itself
    parent: str | None  # the model that an adapter is for
    max_model_len: int | None  # tokens; not known before it was loaded once
    # Anthropic's clients read these.
    display_name: str
    created_at: str
    status: ModelState
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
    """One of them; all where only a slash follows."""
    if not exchange.path["model"]:
        return await models(exchange)
    catalog = exchange.backend.catalog
    name = await catalog.look_up(exchange.path["model"])
    return json_response(await _card(catalog, name))


async def _card(catalog: Catalog, name: ModelName) -> ModelCard:
    described = await catalog.describe(name.model)
    longest, state = described.get("max_position"), ModelState(described["state"])
    parent = None if name.adapter is None else name.model
    return ModelCard(name.id, STARTED, name.model, parent, longest, name.id, WHEN, state)


class ModelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Names a model."""

    model: str


class ModelDone(msgspec.Struct):
    """The answer to a request that is done."""

    success: bool = True


async def load(exchange: Exchange) -> Response:
    """Loads a model."""
    await exchange.backend.catalog.find((await exchange.read(ModelRequest)).model)
    return json_response(ModelDone())


async def unload(exchange: Exchange) -> Response:
    """Unloads a model that is not in use; for operators."""
    backend = exchange.backend
    name = await backend.catalog.look_up((await exchange.read(ModelRequest)).model)
    await asked(backend.client.unload_model(name.model))
    return json_response(ModelDone())
