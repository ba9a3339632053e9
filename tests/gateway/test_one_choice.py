"""A seed and parameters make one text: in all languages, over HTTP, and however it is read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.gateways import Gateway
from support.javascript import require_javascript
from support.rust_components import rust_component
from support.servers import Server

from pie_py.client.sync import Client, Instance
from pie_py.device_programs.fields import FIELDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
GUESTS = Path(__file__).parent / "guests"
PROMPT = [546, 2012, 1499, 425, 36, 1406, 2012, 1499, 425, 36, 1406, 2012]
BASE: dict[str, Any] = {"temperature": 1.0, "seed": 2**52 + 5}
AT_A_TIME = 4  # samplers of an instance
ENDS = [24, 209, 1499]
DRY = {"dry_multiplier": 5.0, "temperature": 0.3}
# Of each field a value that makes another text, beside others.
VALUES: dict[str, tuple[Any, dict[str, Any]]] = {
    "logit_bias": ({"1": -9.0, "24": 1.5}, {}),
    "allowed_tokens": (list(range(1400, 1500)), {}),
    "repetition_penalty": (1.9, {}),
    "presence_penalty": (2.0, {}),
    "frequency_penalty": (2.0, {}),
    "no_repeat_ngram_size": (1, {}),
    "banned_sequences": ([[209, 56], [1499]], {}),
    "min_tokens": (5, {"end_tokens": ENDS}),
    "end_tokens": (ENDS, {}),
    "dry_multiplier": (5.0, {"temperature": 0.3}),
    "dry_base": (99.0, {"dry_multiplier": 0.1}),
    "dry_allowed_length": (0, DRY),
    "dry_sequence_breakers": (PROMPT, DRY),
    "temperature": (0.4, {}),
    "top_k": (2, {}),
    "top_p": (0.2, {}),
    "min_p": (0.5, {}),
    "top_n_sigma": (0.3, {}),
    "typical_p": (0.2, {}),
    "epsilon_cutoff": (0.2, {}),
    "eta_cutoff": (0.9, {}),
    "xtc_probability": (1.0, {}),
    "xtc_threshold": (0.02, {"xtc_probability": 1.0}),
}
OVER_HTTP = {"allowed_tokens": "allowed_token_ids", "end_tokens": "stop_token_ids"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Whose texts depend on nothing beside: with AMX another batch rounds otherwise."""
    models = [{"source": "pie-tiny", "deterministic": True}]
    with Server(models=models) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server: Server) -> Iterator[Gateway]:
    with Gateway(server) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    require_javascript()
    with server.client() as client:
        yield client


def test_a_seed_writes_one_text(client: Client, http: httpx2.Client) -> None:
    assert VALUES.keys() == FIELDS.keys()
    pairs = [
        ({**BASE, **more}, {**BASE, **more, name: value}) for name, (value, more) in VALUES.items()
    ]
    samplers: list[dict[str, Any]] = []
    for one in itertools.chain.from_iterable(pairs):
        if one not in samplers:
            samplers.append(one)
    programs = {
        "python": GUESTS / "one_choice.py",
        "js": GUESTS / "one_choice.ts",
        "rust": rust_component("sample_guests"),
    }
    running: dict[str, list[Instance]] = {}
    for language, program in programs.items():
        uploaded = client.upload(program)
        named = [_camel(one) if language == "js" else one for one in samplers]
        given = [
            json.dumps({"prompt": PROMPT, "samplers": named[at : at + AT_A_TIME]})
            for at in range(0, len(named), AT_A_TIME)
        ]
        before = ["ways"] if language == "rust" else []
        running[language] = [client.launch(uploaded, [*before, one]) for one in given]
    over_http = [one for one in samplers if "banned_sequences" not in one]  # which are words there
    with ThreadPoolExecutor(8) as pool:
        found_over_http = list(pool.map(partial(_over_http, http), over_http))
    texts = {
        language: [ways for one in instances for ways in json.loads(one.result())]
        for language, instances in running.items()
    }
    for number, parameters in enumerate(samplers):
        found = {language: texts[language][number] for language in programs}
        if parameters in over_http:
            found["http"] = [found_over_http[over_http.index(parameters)]]
        assert len({text for ways in found.values() for text in ways}) == 1, (parameters, found)
    for name, two in zip(VALUES, pairs, strict=True):
        without, with_it = (texts["python"][samplers.index(one)][0] for one in two)
        assert without != with_it, f"{name} changes nothing"


def test_a_program_by_its_name(client: Client, http: httpx2.Client) -> None:
    given = {"mu": 10.0, "tau": 5.0, "rate": 0.1}
    sampler = {"program": "mirostat", "given": given, "seed": 4}
    program = client.upload(rust_component("sample_guests"))
    asked = json.dumps({"prompt": PROMPT, "samplers": [sampler]})
    [ways] = json.loads(client.launch(program, ["ways", asked]).result())
    named = {"sampler": {"name": "mirostat", "given": given}, "seed": 4}
    assert {_over_http(http, named)} == set(ways)
    for more, told in (
        ({"temperature": 0.5}, "it takes the place of `temperature`"),
        ({"sampler": "mirostats"}, "did you mean 'mirostat'?"),
    ):
        answer = http.post(
            "/v1/completions", json={"model": "pie-tiny", "prompt": [5], **named, **more}
        )
        assert answer.status_code == 400
        assert told in answer.json()["error"]["message"]


def _camel(parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        re.sub(r"_(\w)", lambda found: found[1].upper(), name): value
        for name, value in parameters.items()
    }


def _over_http(http: httpx2.Client, parameters: dict[str, Any]) -> str:
    asked = {OVER_HTTP.get(name, name): value for name, value in parameters.items()}
    body = {"model": "pie-tiny", "prompt": PROMPT, "max_tokens": 12, "ignore_eos": True}
    body |= {"skip_special_tokens": False, **asked}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text
