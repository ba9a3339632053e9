"""`/api/tags`, `/api/ps`, `/api/show` and `/api/version`."""

from __future__ import annotations

import hashlib
from typing import Any

from starlette.responses import Response

from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response
from pie_gateway.openai.models import WHEN
from pie_gateway.schemas.ollama import (
    OllamaDetails,
    OllamaModel,
    OllamaModels,
    OllamaShown,
    OllamaShowRequest,
)
from pie_py import __version__


async def tags(exchange: Exchange) -> Response:
    """The models that are served."""
    catalog = exchange.backend.catalog
    found = []
    for name in await catalog.names():
        described = await catalog.describe(name.model)
        digest = hashlib.sha256(name.id.encode()).hexdigest()  # clients want one; it tells no bytes
        details = _details(described)
        found.append(OllamaModel(name.id, name.id, WHEN, 0, digest, details))
    return json_response(OllamaModels(found))


async def loaded(exchange: Exchange) -> Response:
    """The models that are loaded: all that are served."""
    return await tags(exchange)


async def show(exchange: Exchange) -> Response:
    """The facts of a model."""
    asked = await exchange.read(OllamaShowRequest)
    backend = exchange.backend
    name = await backend.catalog.find(asked.model or asked.name or "")
    model = await backend.catalog.describe(name.model)
    words = await backend.vocabulary(name.model)
    family = _details(model).family
    info: dict[str, Any] = {
        "general.architecture": family,
        f"{family}.context_length": model["max_position"],
        f"{family}.embedding_length": model["hidden_size"],
        f"{family}.block_count": model["layers"],
        f"{family}.attention.head_count": model["heads"],
    }
    can = ["completion", "tools"]
    can += ["vision"] if model["image_place"] else []
    can += ["thinking"] if words.arguments & {"enable_thinking", "reasoning_effort"} else []
    return json_response(OllamaShown(_details(model), info, can))


async def version(exchange: Exchange) -> Response:
    """The version of the server."""
    return json_response({"version": __version__})


def _details(model: dict[str, Any]) -> OllamaDetails:
    family = model["architecture"].partition("For")[0].lower()
    bits = model.get("few_bits")
    level = f"{min(bits)} bits" if bits else model["quantized"] or model["dtype"]
    return OllamaDetails("pie_py", family, [family], "", level)
