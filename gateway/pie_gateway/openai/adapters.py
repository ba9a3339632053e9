"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM has them, and uploads."""

from __future__ import annotations

from typing import Annotated

import msgspec
from python_multipart.multipart import File
from starlette.responses import Response

from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response, while_asked
from pie_gateway.http.forms import FORM, Form, read_form
from pie_gateway.problems import Problem, asked
from pie_py.config.section import NAME
from pie_py.wire.adapter_file import CONFIG_FILE, TENSOR_FILE, BadAdapter, pack

_Name = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME}\Z")]


class UnloadLora(msgspec.Struct):
    """Names an adapter."""

    lora_name: _Name
    base_model_name: str | None = None  # which it is for; the first one by default


class LoadLora(msgspec.Struct):
    """An adapter in a folder of the server's machine, for all users."""

    lora_name: _Name
    lora_path: str
    base_model_name: str | None = None


class LoraDone(msgspec.Struct):
    """The answer to a request that is done."""

    success: bool = True
    version: str | None = None  # of what was uploaded: the hash that is told with answers


async def load_lora_adapter(exchange: Exchange) -> Response:
    """Loads a LoRA adapter: an operator's from a folder; or a form (multipart/form-data) with
    `lora_name` and the files `adapter_config` and `adapter_model`, for this user alone, in the
    place of the user's former one of the name.
    """
    client, done = exchange.client, LoraDone()
    if exchange.request.headers.get("content-type", "").startswith(FORM):
        form = await read_form(exchange)
        name, data = form.text("lora_name"), await exchange.aside.run(exchange.user, _packed, form)
        model = form.text("base_model_name") or None
        uploading = lambda: asked(client.upload_adapter(name, data, model))  # noqa: E731
        done.version = await while_asked(exchange, uploading)
    else:
        given = await exchange.read(LoadLora)
        await asked(client.load_adapter(given.lora_name, given.lora_path, given.base_model_name))
    exchange.backend.catalog.forget()
    return json_response(done)


async def unload_lora_adapter(exchange: Exchange) -> Response:
    """Has no other request use an adapter: one of this user's, or, for operators, of all."""
    given = await exchange.read(UnloadLora)
    await asked(exchange.client.unload_adapter(given.lora_name, given.base_model_name))
    exchange.backend.catalog.forget()
    return json_response(LoraDone())


def _packed(form: Form) -> bytes:
    """Raises `Problem`: 400, a file is missing, or they make no adapter."""
    files: list[bytes] = []
    for field, name in (("adapter_config", CONFIG_FILE), ("adapter_model", TENSOR_FILE)):
        part = form.parts.get(field.encode())
        if not isinstance(part, File):
            raise Problem(400, f"`{field}` is missing from the form: the file {name}", param=field)
        part.file_object.seek(0)
        files.append(part.file_object.read())
    try:
        return pack(*files)
    except BadAdapter as error:
        raise Problem(400, str(error)) from None
