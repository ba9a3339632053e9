"""Tools and scripts for tests: what is called is given, what comes of it is real."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pie_py.build.modules import MAIN, read_modules
from pie_py.client.sync import Client
from pie_py.wire.modules import pack

ROOT = Path(__file__).parents[2]
ASYNCLM = ROOT / "inferlets/async_function_calling"
GUEST = Path(__file__).with_name("forced_calls.py")


@cache
def forced_program() -> bytes:
    """The program that writes the calls of `--script`, with AsyncLM's modules."""
    _, *modules = read_modules(ASYNCLM / MAIN).items()
    return pack({MAIN: GUEST.read_bytes(), **dict(modules)})


def upload_with_asynclm(client: Client, guest: Path) -> str:
    """Uploads a guest with AsyncLM's modules and scripts beside it, which lie in other folders."""
    files = {file.relative_to(ASYNCLM): file for file in sorted(ASYNCLM.glob("asynclm/**/*.py"))}
    files[GUEST.relative_to(ROOT / "tests")] = GUEST
    modules = {path.as_posix(): file.read_bytes() for path, file in files.items()}
    data = pack({guest.name: guest.read_bytes(), **modules})
    return client.upload(data, name=guest.stem)


def simulated(
    name: str, seconds: float, result: Any = None, *, parameters: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """A tool that takes its time and returns a value, or an `error`."""
    run = {"kind": "simulated", "seconds": seconds, "result": result}
    if "error" in more:
        run["error"] = more.pop("error")
    return tool(name, run, parameters, seconds=seconds, **more)


def tool(
    name: str, run: Mapping[str, Any] | None, parameters: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """A tool's specification."""
    entry = {"name": name, "parameters": {"properties": {key: {} for key in parameters}}, **more}
    return entry if run is None else {**entry, "run": run}


def script(*calls: str | tuple[str, ...], **more: Any) -> str:
    """A script of calls `a: f()`; what follows in a tuple are the identifiers that it comes
    after.
    """
    listed = []
    for call in calls:
        text, *after = (call,) if isinstance(call, str) else call
        identifier, _, written = text.partition(": ")
        listed.append({"id": identifier, "call": written, "after": after})
    return json.dumps({"calls": listed, **more})


def run(
    client: Client,
    tools: Sequence[Mapping[str, Any]],
    calls: str | None = None,
    *options: str,
    mode: Any = "async",
    request: str = "do it",
    **more: Any,
) -> dict[str, Any]:
    """Runs a request to its end and returns the record."""
    given = [*options, *(() if calls is None else ("--script", calls))]
    return answer(client, request, tools=tools, mode=mode, options=given, **more)


def answer(client: Client, *request: Any, **options: Any) -> dict[str, Any]:
    """`Client.answer` by the program that takes a `--script`."""
    found: dict[str, Any] = client.answer(*request, program=forced_program(), **options)
    return found


def results(record: Mapping[str, Any]) -> dict[str, str]:
    """Results as texts, by the calls' identifiers."""
    return {call["identifier"]: call["result"] for call in record["calls"]}


def events(record: Mapping[str, Any], *kinds: str) -> list[str]:
    """Events of some kinds, in order, as `call a`."""
    return [f"{kind} {name}".strip() for _, kind, name in record["timeline"] if kind in kinds]
