from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx2
import openai
import pytest
from support.gateways import Gateway
from support.servers import EMBEDDED, Server

TEMPLATE = (
    "{{ bos_token }}{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    "{% if tools %}<|system|>\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message.name }}{{ message.reasoning_content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{% if message['content'] is none %}(none){% endif %}"
    "{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# Tokens of the embedded model that this one has as markers.
MARKERS = {"[CALL]": "<think>", "[HEAD]": "</think>", "[END]": "<tool_call>"}
MARKERS |= {"[INTR]": "</tool_call>"}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Of the embedded model, and of one like it whose chat template knows of tools."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        model = folder / "tools"
        shutil.copytree(EMBEDDED, model)
        (model / "chat_template.jinja").write_text(TEMPLATE)
        tokenizer = (model / "tokenizer.json").read_text()
        for old, new in MARKERS.items():
            tokenizer = tokenizer.replace(json.dumps(old), json.dumps(new))
        (model / "tokenizer.json").write_text(tokenizer)
        models = [{"source": "pie-tiny"}, {"source": str(model)}]
        with Server(folder, models=models, durable={"idle_seconds": 0.3}) as server:
            yield server


@pytest.fixture(scope="session")
def gateway(server: Server) -> Iterator[Gateway]:
    with Gateway(server, served_model_names={"gpt-4o": "", "caller": "tools"}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def http(gateway: Gateway) -> Iterator[httpx2.Client]:
    with gateway.http() as http:
        yield http


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client
