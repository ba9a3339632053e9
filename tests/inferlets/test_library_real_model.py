"""Every program of the library on a real instruct model: what it returns is sensible, or it says
what it wants.

The model is small, and what is told here holds of any: that formats are kept, that calls run, that
nothing is empty. Where it is right by itself, that is told as well.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.library import LIBRARY
from support.servers import Server

from pie_py.build.modules import read_program
from pie_py.client.errors import InferletFailed
from pie_py.client.sync import Client

JAPAN = "What is the capital of Japan?"
COLD = ["--temperature", "0"]
SHORT = ["--max-tokens", "12"]
CAPITAL = ["--prompt", "The capital of France is"]
SMALL_TASK = {
    "model": "{model}",
    "text": CAPITAL[1],
    "max_tokens": 4,
    "sampler": {"temperature": 0},
}


def keys(*wanted: str) -> Callable[[Any], bool]:
    """Whether all these are there, and none is empty."""
    return lambda found: all(found[key] not in ("", [], None) for key in wanted)


Check = Callable[[Any], bool]
PROGRAMS: list[tuple[str, list[str], Check | str]] = [
    (
        "api_agent",
        ["--apis", "play~48(text)", "--request", "play", "--url", "{url}", *SHORT],
        "CML",
    ),
    ("approval_agent", ["--question", CAPITAL[1], "--answer", "yes", *SHORT], keys("plan")),
    ("attention_sink", ["--window", "1", "--max-tokens", "40"], keys("text")),
    ("beam_search", [*CAPITAL, "--max-tokens", "4"], lambda beams: " Paris" in beams[0]["text"]),
    ("best_of_n", [*CAPITAL, *SHORT], lambda found: len(found) == 4 and found[0]["text"]),
    ("code_act", [], lambda found: found["answer"] == "170168"),
    (
        "completion",
        [*CAPITAL, "--max-tokens", "4", "--n", "2", "--seed", "1"],
        lambda texts: len(texts) == 2 and all(texts),
    ),
    ("constrained_tools", ["--request", "What is 17 plus 25?"], lambda f: f["result"] == 42),
    (
        "constrained_tools",
        ["--request", "Please paint it green."],
        lambda f: f["call"]["arguments"] == {"colour": "green"},
    ),
    (
        "evaluation",
        ["--question", "The colour of coal is", "--choices", "black.", "green."],
        lambda found: found["acc"] == 1,
    ),
    (
        "grammar_aligned_decoding",
        ["--samples", "4"],
        lambda f: f["texts"] and all(len(text) == 4 and 0 < f["share"] <= 1 for text in f["texts"]),
    ),
    ("graph_of_thought", ["--numbers", "17", "25"], lambda f: isinstance(f["answer"], int)),
    (
        "hierarchical_attention",
        ["--parts", "Rena is old. ", "Kurt is young. ", "--prompt", "Rena is", *SHORT],
        keys("text"),
    ),
    (
        "human_in_the_loop",
        [
            *("--functions", "play(text)", "paint(colour)", "--answer", "yes"),
            *("--request", "Please paint it red.", "--max-tokens", "40"),
        ],
        lambda found: found["made"] == ["paint"] and found["answer"],
    ),
    ("jacobi_decoding", SHORT, keys("text")),
    (
        "kv_eviction",
        ["--prompt", "The code is 4711. " + "The road was long. " * 20 + "The code is", *SHORT],
        lambda found: "4711" in found["text"],
    ),
    (
        "modular_caching",
        ["--schema", "Rena is old. ", "Ida is kind. ", "--use", "1", "--prompt", "Ida is", *SHORT],
        keys("text"),
    ),
    ("monte_carlo_tree_search", ["--simulations", "4", "--length", "4"], keys("text")),
    (
        "output_validation",
        ["--options", " black.", " white.", " Paris."],
        lambda found: found["answer"] in (" black.", " white."),
    ),
    ("prefix_caching", SHORT, keys("text")),
    ("prefix_tree", ["--parts", "You are brief. ", *CAPITAL[1:], *SHORT], keys("text")),
    (
        "react",
        ["--url", "{url}", "--question", "Who is the brother of Edgar?", "--steps", "1"],
        keys("answer", "calls"),
    ),
    ("recursion_of_thought", ["--numbers", "17", "25"], lambda f: isinstance(f["answer"], int)),
    ("retrieval", ["--add", "Mount Fuji is in Japan.", "--add", "Kurt is old."], keys("texts")),
    ("retrieval", ["--question", "Where is Mount Fuji?"], lambda found: "Japan" in found["answer"]),
    (
        "self_consistency",
        ["--question", "What is 17 + 25?", "--votes", "2"],
        lambda found: found["answer"].lstrip("-").isdigit(),
    ),
    ("skeleton_of_thought", [], lambda f: all(f["texts"]) and len(f["texts"]) == 3),
    ("speculative_decoding", SHORT, keys("text")),
    (
        "summarise_in_place",
        [*("--messages", "I have a dog called Rex.", "What is my dog called?", "--most", "60")],
        lambda found: found["turns"] == 2 and all(found["summaries"]),
    ),
    ("swarm", ["--agents", "ada", "bob"], keys("said")),
    ("thinking_budget", ["--at-most", "24"], keys("answer")),
    (
        "tree_of_thought",
        ["--question", "What is 5 + 3?", "--branches", "2"],
        lambda found: found["answer"].startswith("Answer: ") and found["value"] >= 1,
    ),
    ("watermarking", SHORT, keys("text")),
    ("windowed_attention", SHORT, keys("text")),
]
# Programs that send a text, or have no `main.py`.
TEXTS: list[tuple[str, str, list[str], str]] = [
    ("text_completion", "main.py", [*CAPITAL, *SHORT], " Paris"),
    ("ebnf_decoding", "main.py", ["--prompt", "Alice is 31 years old. As JSON: "], '"age": 31'),
    ("async_function_calling", "main.py", ["--max-tokens", "48"], "  -> a"),
    ("async_function_calling", "main.py", ["--mode", "sync", "--max-tokens", "48"], "  -> a"),
    ("ask", "main.py", ["--question", JAPAN, *COLD, *SHORT], "Tokyo"),
    ("embedding", "main.py", ['{"inputs": ["Paris"]}'], '["piece", 0, '),
    ("http_answer", "http_answer.wasm", [json.dumps(SMALL_TASK)], " Paris"),
]


@pytest.fixture(scope="session")
def client(smollm2: Path) -> Iterator[Client]:
    """A client of a server of the model."""
    with (
        Server(
            models=[{"source": str(smollm2), "name": "smollm2", "kv_pages": 1024}],
            http={"allow": ["127.0.0.1:*"], "allow_networks": ["127.0.0.0/8"]},
        ) as server,
        server.client() as client,
    ):
        yield client


# What each computes is tested with the embedded model in each run.
DAILY = ("beam_search", "ebnf_decoding", "react", "text_completion")


def by_night(rows: list[Any]) -> list[Any]:
    """Parameters of which most run nightly: a real model is slow."""
    return [
        pytest.param(*row, marks=[] if row[0] in DAILY else pytest.mark.nightly) for row in rows
    ]


@pytest.mark.parametrize(("name", "args", "check"), by_night(PROGRAMS))
def test_a_program_is_sensible_or_says_what_it_wants(
    client: Client, url: str, name: str, args: list[str], check: Check | str
) -> None:
    program = client.upload(LIBRARY / name / "main.py", name=name)
    instance = client.launch(program, [arg.replace("{url}", url) for arg in args])
    if isinstance(check, str):
        with pytest.raises(InferletFailed, match=check):
            instance.result()
    else:
        found = json.loads(instance.result())
        assert check(found), found


@pytest.mark.parametrize(("name", "file", "args", "wanted"), by_night(TEXTS))
def test_a_program_sends_a_sensible_text(
    client: Client, name: str, file: str, args: list[str], wanted: str
) -> None:
    program = client.upload(read_program(LIBRARY / name / file), name=name)
    told = client.launch(program, [arg.replace("{model}", "smollm2") for arg in args])
    assert wanted in "".join(map(str, told))


def test_a_conversation_goes_on_in_its_pages(client: Client) -> None:
    program = client.upload(read_program(LIBRARY / "chat/main.py"), name="chat")
    chat = client.launch(program, ["--system", "You answer in one sentence.", *COLD])

    def answer(text: str) -> str:
        chat.send(text)
        pieces = []
        while piece := chat.receive():
            pieces.append(str(piece))
        return "".join(pieces)

    assert "Paris" in answer("What is the capital of France?")
    assert answer("And of Italy?").strip()
    of, kept = re.findall(r"of the (\d+) .* them (\d+) were in KV pages", answer("/stats"))[0]
    assert 0 < int(of) - int(kept) < 24
    chat.send("")
    chat.result()


@pytest.mark.nightly
@pytest.mark.usefixtures("smollm2")
def test_a_model_that_has_learnt_cml_calls_unasked() -> None:
    """With the adapter that comes with the program."""
    command = [sys.executable, "-m", "pie_py", "run", "async_function_calling", "-m", "smollm2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    for part in ('-> a1: fetch_weather(city="Paris")', "-> b1: find_train(", "Done."):
        assert part in done.stdout


def test_every_program_is_in_the_table() -> None:
    told = {row[0] for row in PROGRAMS} | {row[0] for row in TEXTS} | {"chat"}
    assert told == {path.parent.name for path in LIBRARY.glob("*/README.md")}
