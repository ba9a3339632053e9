from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from support.gateways import Gateway
from support.servers import Server

EMBEDDED = Path(__file__).parents[2] / "inference/pie_inference/embedded/pie-tiny"
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message.name }}{{ message.reasoning_content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Of the embedded model, and of one like it whose chat template knows of tools."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        model = folder / "tools"
        shutil.copytree(EMBEDDED, model)
        (model / "chat_template.jinja").write_text(TEMPLATE)
        models = [{"source": "pie-tiny"}, {"source": str(model)}]
        with Server(folder, models=models) as server:
            yield server


@pytest.fixture(scope="session")
def gateway(server: Server) -> Iterator[Gateway]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name, Gateway(server, Path(name)) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client
