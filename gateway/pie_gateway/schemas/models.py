"""`/v1/models`."""

from __future__ import annotations

from typing import Literal

import msgspec


class ModelCard(msgspec.Struct):
    """A name that requests may give as `model`."""

    id: str
    created: int
    root: str  # the model itself
    parent: str | None  # the model that an adapter is for
    max_model_len: int  # tokens
    object: Literal["model"] = "model"
    owned_by: Literal["pie-py"] = "pie-py"


class ModelList(msgspec.Struct):
    """All names."""

    data: list[ModelCard]
    object: Literal["list"] = "list"
