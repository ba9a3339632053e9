"""Where tools run: an HTTP service, an MCP server, a child inferlet, the client.

A tools file is a JSON list of OpenAI-style specifications, each with a `run` that says where;
without one the client that launched the inferlet runs it. `docs/async-function-calling.md` shows
all of them.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from keyword import iskeyword
from typing import Any
from urllib.parse import quote

from asynclm.tools.client import ClientLink
from asynclm.tools.tool import DEFAULT_SECONDS, Cut, Run, Tool, ToolError
from inferlet import http, mcp, runtime
from inferlet.errors import PieError

MOST_BYTES = 1 << 18  # of an answer that are looked at
_BODIES = ("POST", "PUT", "PATCH")
_PLACE = r"\{([^{}]+)\}"


class BadTools(ValueError):
    """A tools file that can't be used; the message says which part and why."""


async def load_tools(text: str, client: ClientLink) -> list[Tool]:
    """The tools of a tools file, by its JSON; the client runs those that are its own.

    Raises `BadTools` if it is wrong, or an MCP server that it names can't be asked for its tools.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        if text.startswith("@"):
            raise BadTools(f"there is no file {text[1:]}") from None
        raise BadTools(f"the tools are not JSON: {error}") from None
    if isinstance(found, dict) and "tools" in found:
        found = found["tools"]
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadTools("the tools are not a JSON list of objects")
    tools: list[Tool] = []
    for number, entry in enumerate(found):
        try:
            if entry.get("type") == "mcp":
                tools += await _of_server(entry, client)
            else:
                tools.append(tool_from_json(entry, client))
        except (KeyError, TypeError, AttributeError, ValueError, PieError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadTools(f"tool number {number}: {reason}") from None
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadTools(f"two tools are called {twice}")
    return tools


def tool_from_json(entry: Mapping[str, Any], client: ClientLink) -> Tool:
    """One tool from its specification: OpenAI's object, or its `function` part alone, with
    `seconds`, `timeout` and `run`. Raises ValueError, KeyError or TypeError if it is wrong.
    """
    function = entry.get("function", entry)
    name = function["name"]
    if not isinstance(name, str) or name != _written_name(name):
        raise ValueError(f"{name!r} is not a function's name")
    schema = function.get("parameters") or {}
    run = entry.get("run", function.get("run"))
    timeout = entry.get("timeout", function.get("timeout"))
    properties = schema.get("properties") or {}
    written: dict[str, str] = {}
    for key in properties:
        written[key] = _argument_name(key, taken=written.values())
    names = {given: key for key, given in written.items()}
    return Tool(
        name,
        _renamed(client.runner(name) if run is None else runner(run, client, name), names),
        str(function.get("description") or ""),
        {
            written[key]: value if isinstance(value, dict) else {}
            for key, value in properties.items()
        },
        tuple(written.get(key, key) for key in schema.get("required") or ()),
        _seconds(entry.get("seconds", function.get("seconds", DEFAULT_SECONDS))),
        None if timeout is None else _seconds(timeout),
    )


def _written_name(name: str) -> str:
    """The name by which a function is called, which Python's parser reads."""
    return ".".join(map(_argument_name, name.split(".")))


def _argument_name(name: str, taken: Collection[str] = ()) -> str:
    """The name under which an argument is given: `from_` of `from`, `user_id` of `user-id`."""
    written = re.sub(r"\W|^(?=\d)|^$", "_", name)
    while iskeyword(written) or written in taken:
        written += "_"
    return written


def _renamed(run: Run, names: Mapping[str, str]) -> Run:
    """A tool that gets arguments under its own names, by those under which they are given."""
    return lambda arguments: run({names[name]: value for name, value in arguments.items()})


def _seconds(given: Any) -> float:
    seconds = float(given)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{given!r} is no number of seconds")
    return seconds


def runner(where: Mapping[str, Any], client: ClientLink, name: str) -> Run:
    """How a tool runs by the `run` of its specification. Raises ValueError, KeyError or TypeError
    if that is wrong.
    """
    match where["kind"]:
        case "client":
            return client.runner(where.get("name", name))
        case "http":
            return http_tool(
                where["url"], where.get("method", "GET"), where.get("headers"), where.get("body")
            )
        case "mcp":
            return mcp_tool(where["server"], where.get("tool", name))
        case "inferlet":
            return inferlet_tool(where["program"], where.get("args"))
        case "simulated":
            return simulated_tool(
                _seconds(where["seconds"]), where.get("result"), where.get("error")
            )
        case other:
            raise ValueError(f"no kind of tool is called {other!r}")


def http_tool(
    url: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: str | None = None,
) -> Run:
    """A request to a service. `{name}` in the URL stands for an argument.

    The other arguments are the query of a GET, and the JSON body of a POST, PUT or PATCH. An answer
    of JSON is its value, any other a text. `body` puts the arguments there whatever the method:
    `query` or `json`.
    """
    method = method.upper()
    if body not in (None, "query", "json"):
        raise ValueError(f"body {body!r} is neither 'query' nor 'json'")
    in_body = body == "json" or (body is None and method in _BODIES)

    async def run(arguments: dict[str, Any]) -> Any:
        rest = dict(arguments)
        filled = url
        for name, value in arguments.items():
            place = f"{{{name}}}"
            if place in filled:
                filled = filled.replace(place, quote(_written(value), safe=""))
                del rest[name]
        options: dict[str, Any] = {"headers": headers}
        if in_body:
            options["json"] = rest
        elif rest:
            options["params"] = {
                key: value if isinstance(value, list) else _written(value)
                for key, value in rest.items()
            }
        async with await http.request(method, filled, **options) as response:
            data = b""
            async for chunk in response.stream():
                data += chunk
                if len(data) > MOST_BYTES:
                    break
            length = int(response.headers.get("content-length", "0") or 0)
        text = data[:MOST_BYTES].decode(errors="replace")
        if not response.ok:
            raise ToolError(f"status {response.status}: {text[:200]}")
        if len(data) > MOST_BYTES:
            return Cut(text, max(length, len(data)))
        return _value_of(text)

    return run


def mcp_tool(server: str, tool: str) -> Run:
    """A tool of a registered MCP server."""

    async def run(arguments: dict[str, Any]) -> Any:
        result = await mcp.call_tool(server, tool, arguments)
        if result.is_error:
            raise ToolError(result.text or "the tool failed")
        return result.text if result.structured is None else result.structured

    return run


def inferlet_tool(program: str, args: Sequence[str] | None = None) -> Run:
    """A child inferlet, by name or content hash, whose result is the value.

    `{name}` in its arguments stands for one of the call. Without any the child gets `--input` and
    all arguments as JSON.
    """

    async def run(arguments: dict[str, Any]) -> Any:
        if args is None:
            given = ["--input", json.dumps(arguments)]
        else:
            given = [_filled(str(arg), arguments) for arg in args]
        return _value_of(await runtime.launch(program, *given))

    return run


def simulated_tool(seconds: float, result: Any = None, error: str | None = None) -> Run:
    """Takes its time and then returns the same every time, for demonstrations and benchmarks.

    `{name}` in a text result stands for an argument.
    """

    async def run(arguments: dict[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        if error is not None:
            raise ToolError(error)
        return _filled(result, arguments) if isinstance(result, str) else result

    return run


async def _of_server(entry: Mapping[str, Any], client: ClientLink) -> list[Tool]:
    """All tools of an MCP server, or those that the entry's `allow` names."""
    server, allowed = entry["server"], entry.get("allow")
    times = {name: entry[name] for name in ("seconds", "timeout") if name in entry}
    return [
        tool_from_json(
            {
                "name": _written_name(found.name),
                "description": found.description,
                "parameters": found.input_schema,
                "run": {"kind": "mcp", "server": server, "tool": found.name},
                **times,
            },
            client,
        )
        for found in await mcp.list_tools(server)
        if allowed is None or found.name in allowed
    ]


def _filled(text: str, arguments: Mapping[str, Any]) -> str:
    """A text with `{name}` replaced by arguments, in which `{name}` means nothing."""
    return re.sub(
        _PLACE,
        lambda place: _written(arguments[place[1]]) if place[1] in arguments else place[0],
        text,
    )


def _written(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _value_of(text: str) -> Any:
    """JSON as its value, anything else as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
