"""`/v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from pie_gateway.schemas.sampling import Name, TokenId


class EmbeddingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for the embeddings of texts."""

    model: Name
    input: str | Annotated[list[str | TokenId | list[TokenId]], msgspec.Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    user: str | None = None
