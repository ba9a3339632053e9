"""The OpenAPI description of all operations."""

from __future__ import annotations

import re
from functools import cache
from inspect import cleandoc
from typing import Any

import msgspec

from pie_gateway.operations import OPERATIONS, Operation
from pie_py import __version__

_COMMON = {
    400: "a field is wrong, or not supported",
    401: "no API key, or one of no user",
    403: "not allowed",
    408: "the body has not arrived in time",
    413: "the body is too large",
    429: "a limit is reached; `retry-after` tells when to try again",
    503: "too much is asked for at present, or the server is away; try again",
}
_MORE = {
    404: "there is nothing of that name",
    409: "it has ended, or is in use",
    504: "it took too long",
}


@cache
def description() -> dict[str, Any]:
    """The description, OpenAPI 3.1."""
    kinds = [kind for each in OPERATIONS for kind in (each.body, each.answer)]
    kinds = [kind for kind in kinds if kind not in (None, bytes, str)]
    kinds += {each.error for each in OPERATIONS}
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    of_kind = dict(zip(map(str, kinds), schemas, strict=True))
    paths: dict[str, Any] = {}
    for each in OPERATIONS:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, of_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pie_py", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(each: Operation, of_kind: dict[str, Any]) -> dict[str, Any]:
    summary, _, rest = cleandoc(each.endpoint.__doc__ or "").partition("\n\n")
    described: dict[str, Any] = {
        "operationId": f"{each.method.lower()}_{each.endpoint.__name__}",
        "summary": summary.replace("\n", " "),
        "responses": _responses(each, of_kind),
    }
    if rest:
        described["description"] = rest
    in_path = {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    names = re.findall(r"\{(\w+)(?::\w+)?\}", each.path)
    parameters: list[dict[str, Any]] = [{"name": name, **in_path} for name in names]
    parameters += [
        {"name": name, "in": "query", "required": "default" not in schema, "schema": schema}
        for name, schema in each.query
    ]
    if parameters:
        described["parameters"] = parameters
    if each.body is bytes:
        content: dict[str, Any] = {"application/octet-stream": {"schema": {}}}
        described["requestBody"] = {"required": True, "content": content}
    elif each.body is not None:
        media = "multipart/form-data" if each.is_form else "application/json"
        content = {media: {"schema": of_kind[str(each.body)]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _responses(each: Operation, of_kind: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if each.answer is str:
        content["text/plain"] = {"schema": {"type": "string"}}
    elif each.answer is not bytes:
        content["application/json"] = {"schema": of_kind[str(each.answer)]}
    if each.streams:
        content["text/event-stream"] = {"schema": {}}
    responses: dict[str, Any] = {str(each.status): {"description": "done", "content": content}}
    error = {"application/json": {"schema": of_kind[str(each.error)]}}
    for status, what in sorted({**_COMMON, **{s: _MORE[s] for s in each.statuses}}.items()):
        responses[str(status)] = {"description": what, "content": error}
    return responses
