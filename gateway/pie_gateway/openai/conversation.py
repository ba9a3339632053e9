"""Messages as chat templates want them, and the images in them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from pie_gateway.problems import unsupported, wrong
from pie_gateway.schemas import messages as schema

Part: TypeAlias = schema.TextPart | schema.ImagePart | schema.RefusalPart


def render(messages: Sequence[schema.Message]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The template's messages, and the images' files. Raises `Problem`: 400 if one is none."""
    images: list[bytes] = []
    rendered = [_message(message, images, at) for at, message in enumerate(messages)]
    _give_ids(rendered)
    return rendered, images


def _give_ids(messages: list[dict[str, Any]]) -> None:
    """Gives a call without an id one; a result without one is that of the call before it that has
    none yet.
    """
    waiting: list[str] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            own = message["tool_call_id"] or (waiting[0] if waiting else f"call_{at}")
            message["tool_call_id"] = own
            waiting = [each for each in waiting if each != own]
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = call["id"] or f"call_{at}_{number}"
            waiting = [*waiting, call["id"]] if number else [call["id"]]


def merged_up(messages: Sequence[schema.Message]) -> list[schema.Message]:
    """The messages with those of the system as one at the beginning: of applications that send
    several, anywhere, most models make most sense so, and many templates take no others.
    """
    texts: list[str] = []
    rest: list[schema.Message] = []
    for message in messages:
        if isinstance(message, schema.SystemMessage):
            content = message.content or ""
            texts.append(content if isinstance(content, str) else text_of(content))
        else:
            rest.append(message)
    return [schema.SystemMessage("\n\n".join(filter(None, texts))), *rest] if any(texts) else rest


def with_ids(messages: list[dict[str, Any]], length: int) -> list[dict[str, Any]]:
    """Messages whose calls have ids of so many letters and digits, as a template wants them."""

    def short(name: str) -> str:
        if len(name) == length and name.isalnum() and name.isascii():
            return name
        return hashlib.sha256(name.encode()).hexdigest()[:length]

    found = []
    for message in messages:
        changed = dict(message)
        if "tool_call_id" in message:
            changed["tool_call_id"] = short(message["tool_call_id"])
        if calls := message.get("tool_calls"):
            changed["tool_calls"] = [{**call, "id": short(call["id"])} for call in calls]
        found.append(changed)
    return found


def _message(message: schema.Message, images: list[bytes], at: int) -> dict[str, Any]:
    where = message.where if isinstance(message, schema.PlacedMessage) else f"messages[{at}]"
    rendered: dict[str, Any]
    named = {"name": message.name} if message.name else {}
    match message:
        case schema.SystemMessage(content) | schema.DeveloperMessage(content):
            rendered = {"role": "system", "content": _content(content, images, where)}
        case schema.UserMessage(content):
            rendered = {"role": "user", "content": _content(content, images, where)}
        case schema.ToolMessage(content, call):
            said = _content(content, images, where)
            rendered = {"role": "tool", "content": said, "tool_call_id": call}
        case schema.AssistantMessage():
            rendered = _assistant(message, images, where)
    return {**rendered, **named}


def _assistant(message: schema.AssistantMessage, images: list[bytes], where: str) -> dict[str, Any]:
    thought = message.reasoning_content or message.reasoning
    given = message.refusal if message.content is None else message.content
    # Beside calls, templates ask whether there is a content: null is none, as in `transformers`.
    null = given is None and message.tool_calls
    content = None if null else _content(given or "", images, where)
    rendered: dict[str, Any] = {"role": "assistant", "content": content}
    if thought:
        rendered["reasoning_content"] = thought
    if message.tool_calls:
        rendered["tool_calls"] = [_call(call) for call in message.tool_calls]
    return rendered


def _call(call: schema.GivenCall) -> dict[str, Any]:
    """A call whose arguments are an object, as templates want them; or as the model wrote them,
    where that is no JSON, as of a text that was cut off.
    """
    arguments: Any = call.function.arguments or {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = msgspec.json.decode(arguments)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _content(
    content: str | Sequence[Part] | None, images: list[bytes], where: str
) -> str | list[dict[str, str]]:
    """A text; or parts, if one is an image: templates of models that read text alone want texts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, str]] = []
    for part in content:
        if isinstance(part, schema.ImagePart):
            given = part.image_url
            address = schema.ImageAddress(given) if isinstance(given, str) else given
            if address.detail == "low":
                raise unsupported(f"{where}.detail", "an image is read at the model's own size")
            images.append(_image(address.url, where))
            parts.append({"type": "image"})
        else:
            text = part.refusal if isinstance(part, schema.RefusalPart) else part.text
            parts.append({"type": "text", "text": text})
    if any(part["type"] == "image" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def text_of(content: Sequence[schema.TextPart | schema.RefusalPart]) -> str:
    """The text of a message's parts."""
    return "\n".join(
        part.refusal if isinstance(part, schema.RefusalPart) else part.text for part in content
    )


def _image(url: str, where: str) -> bytes:
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise wrong(
            where,
            "an image is given as data:image/png;base64,... or"
            " data:image/jpeg;base64,...; nothing is fetched from other servers",
        )
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:  # binascii's among them
        raise wrong(where, f"the image is no base64: {error}") from None
