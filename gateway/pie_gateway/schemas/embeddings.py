"""`/v1/embeddings`; `/v1/score` and `/v1/rerank`, which compare texts; `/pooling`, `/classify`."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from pie_gateway.schemas.sampling import ModelName, TokenId

Item = TypeVar("Item")
MAX_TEXTS = 2048  # of a request, as OpenAI has it
Most: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
Texts: TypeAlias = Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_TEXTS)]


class _Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The common fields of these requests."""

    model: ModelName = ""
    truncate_prompt_tokens: Most | None = None  # of each text; -1: as many as the model takes
    user: str | None = None


class TextsRequest(_Request, kw_only=True):
    """Texts, as for vLLM's `/pooling` and `/classify`."""

    # A text, texts, a list of token ids, or several of those.
    input: (
        str
        | Annotated[
            list[str | TokenId | list[TokenId]], msgspec.Meta(min_length=1, max_length=1 << 20)
        ]
    )


class EmbeddingsRequest(TextsRequest, kw_only=True):
    """A request for the embeddings of texts."""

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None


# That vectors are those of a model that was not made to give any.
Warned: TypeAlias = str | msgspec.UnsetType


class EmbeddingsUsage(msgspec.Struct):
    """Tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """A text's vector, of length 1; base64 of little-endian float32 if that was asked for."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class ScoreRequest(_Request, kw_only=True):
    """Compares a text with others, or texts one by one."""

    text_1: str | Texts
    text_2: str | Texts


class Score(msgspec.Struct):
    """How alike two texts are, -1 to 1, or what a cross-encoder's head says of them."""

    index: int
    score: float
    object: Literal["score"] = "score"


class DocumentText(msgspec.Struct):
    """A document."""

    text: str


class RerankRequest(_Request, kw_only=True):
    """Orders documents by how well they fit a query, as Cohere, Jina and vLLM have it."""

    query: str
    documents: Annotated[
        list[str | DocumentText], msgspec.Meta(min_length=1, max_length=MAX_TEXTS - 1)
    ]
    top_n: Annotated[int, msgspec.Meta(ge=1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Ranked(msgspec.Struct, omit_defaults=True):
    """A document, by its place in the request."""

    index: int
    relevance_score: float
    document: DocumentText | None = None


class RerankAnswer(msgspec.Struct):
    """Documents, the best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: EmbeddingsUsage
    meta: dict[str, Any]  # Cohere's
    warning: Warned = msgspec.UNSET


class Pooled(msgspec.Struct):
    """A text's vector, not normalized, or a head's numbers before its activation."""

    index: int
    data: list[float]
    object: Literal["pooling"] = "pooling"


class Classified(msgspec.Struct):
    """The likeliest label of a text, and the probabilities of all."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Listed(msgspec.Struct, Generic[Item]):
    """A model's results for texts or pairs of them, in their order."""

    id: str
    created: int
    model: str
    data: list[Item]
    usage: EmbeddingsUsage
    object: Literal["list"] = "list"
    warning: Warned = msgspec.UNSET


EmbeddingsAnswer, ScoreAnswer = Listed[Embedding], Listed[Score]
PooledAnswer, ClassifiedAnswer = Listed[Pooled], Listed[Classified]
