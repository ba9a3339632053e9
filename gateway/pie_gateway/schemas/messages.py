"""The messages of a conversation, as OpenAI writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec


class TextPart(msgspec.Struct, forbid_unknown_fields=True, tag="text"):
    """Text."""

    text: str
    cache_control: dict[str, Any] | None = None  # every prefix is cached anyway


class ImageAddress(msgspec.Struct, forbid_unknown_fields=True):
    """An image as `data:image/png;base64,...`."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(msgspec.Struct, forbid_unknown_fields=True, tag="image_url"):
    """An image, as OpenAI writes it, or, as Mistral does, its address alone."""

    image_url: ImageAddress | str
    cache_control: dict[str, Any] | None = None


class RefusalPart(msgspec.Struct, forbid_unknown_fields=True, tag="refusal"):
    """A refusal of a model."""

    refusal: str


class SystemMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="system"):
    """Instructions for the whole conversation."""

    content: str | list[TextPart] | None = None
    name: str | None = None


class DeveloperMessage(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="developer"
):
    """Instructions for the whole conversation, by their newer name."""

    content: str | list[TextPart] | None = None
    name: str | None = None


class UserMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="user"):
    """A message of the user."""

    content: str | list[TextPart | ImagePart]
    name: str | None = None


class PlacedMessage(UserMessage, tag="user"):
    """One that is made of an item of another request."""

    where: str = ""  # the item's place there, which errors name


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function's name and its arguments in JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call that the model has made."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class GivenFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function's name and its arguments, as clients send them back: in JSON, or an object."""

    name: str
    arguments: str | dict[str, Any] | None = None
    parsed_arguments: Any = None  # the official client's reading of them


class GivenCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call that the model has made, as clients send it back."""

    function: GivenFunction
    id: str | None = None  # by default it is known by its place
    type: Literal["function"] = "function"
    index: int | None = None  # of a call put together from a stream


class AssistantMessage(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="assistant"
):
    """A message of the model."""

    content: str | list[TextPart | RefusalPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # its name elsewhere
    tool_calls: list[GivenCall] | None = None
    # What others' answers have beside their text, which it does not change.
    annotations: list[Any] | None = None
    parsed: Any = None
    phase: str | None = None


class ToolMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="tool"):
    """The result of a call."""

    content: str | list[TextPart] | None = None
    tool_call_id: str | None = None
    name: str | None = None


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
Messages = Annotated[list[Message], msgspec.Meta(min_length=1)]
