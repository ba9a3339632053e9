"""Generations that run ahead, in Rust at a real server: all is as without. Python's are held to it
by `sdk_python/test_sdk_ahead.py`, and their texts by `gateway/test_one_choice.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support import reference
from support.rust_components import rust_component
from support.servers import Server

from pie_py.client.sync import Client

pytestmark = pytest.mark.slow

PROGRAMS = 16
HOWS = ("tokens", "text", "send", "break", "cancel")


def program(seed: int) -> dict[str, Any]:
    """A prompt and a few generations after it."""
    chance = random.Random(seed)
    tokens = chance.choices(range(3, 300), k=chance.choice([1, 5, 14, 15, 16, 17, 40]))
    steps = []
    for _ in range(chance.randint(1, 5)):
        temperature = chance.choice([0, 0, 0.9])
        steps.append(
            {
                "how": chance.choice(HOWS),
                "most": chance.choice([0, 1, 2, 7, 20]),
                "after": chance.randint(1, 5),
                "stop_tokens": chance.sample(range(3, 300), chance.choice([0, 0, 20, 60])),
                "stop_strings": chance.choice([[], [], ["e"], ["qu", "ab", "1"]]),
                "temperature": temperature,
                "penalty": chance.choice([0, 0, 0.5]) if temperature else 0,
                "seed": chance.randrange(2**31),
                "fork": chance.random() < 0.3,
                "then": chance.choices(range(3, 300), k=chance.choice([0, 0, 1, 3])),
            }
        )
    return {"tokens": tokens, "steps": steps}


def run_all(client: Client, jobs: list[dict[str, Any]], ahead: bool) -> list[Any]:
    """What each program tells, all of them at once."""
    program = client.upload(rust_component("sample_guests"))
    given = [["run-ahead", json.dumps({**job, "ahead": ahead})] for job in jobs]
    instances = [client.launch(program, each) for each in given]
    return [json.loads(instance.result()) for instance in instances]


def texts(told: list[Any]) -> list[Any]:
    """What generations gave, and the tokens of the context after each."""
    steps, last = told
    return [*([out, tokens] for out, tokens, _, _ in steps), last]


def test_programs_on_and_off(client: Client, checkpoint: Path) -> None:
    jobs = [program(seed) for seed in range(PROGRAMS)]
    on, off = (run_all(client, jobs, ahead) for ahead in (True, False))
    assert [*map(texts, on)] == [*map(texts, off)]
    for job, (steps, last) in list(zip(jobs, off, strict=True))[:8]:
        tokens = steps[-1][1] + job["steps"][-1]["then"]
        assert last == reference.greedy(checkpoint, tokens, 4)


def test_the_worker_is_given_plans_ahead(client: Client) -> None:
    before = client.stats()["test"]
    step = {**program(1)["steps"][0], "how": "tokens", "most": 40, "stop_tokens": []}
    step |= {"stop_strings": [], "temperature": 0, "penalty": 0, "fork": False, "then": []}
    run_all(client, [{"tokens": [5, 6, 7], "steps": [step]}], ahead=True)
    after = client.stats()["test"]
    ahead = ("plans_ahead", "further_steps")
    assert sum(after[figure] - before[figure] for figure in ahead) > 20
    assert after["plans_followed"] > before["plans_followed"]
    assert after["worker_idle_ns"] >= before["worker_idle_ns"]


AGAIN = b"""
import json
from inferlet import Context, Model, Sampler

async def main(args):
    prompt, like = json.loads(args[0])
    context = Context(Model.load(), prefix_cache=False).append(prompt)
    generation = context.generate(
        Sampler.top_p(1.0, 1.0, seed=5), max_tokens=64, stop=[], speculate=8, like=like
    )
    return json.dumps(await generation.collect_tokens())
"""


def test_an_earlier_text_is_guessed_from(server: Server) -> None:
    prompt, forwards = list(range(5, 20)), []
    like: list[int] = []
    with server.client() as client:
        program = client.upload(AGAIN, name="again")
        for _ in range(2):
            before = client.stats()["test"]["batches"]["forward"]
            told = client.launch(program, [json.dumps([prompt, like])]).result()
            forwards.append(client.stats()["test"]["batches"]["forward"] - before)
            assert like in ([], json.loads(told))
            like = json.loads(told)
    assert len(set(like)) > 30  # nothing to be found in itself
    assert forwards[1] < forwards[0] / 2


BESIDE = b"""
from inferlet import Context, Model

async def main(args):
    first = Context(Model.load()).append(list(range(5, 20)))
    long = first.generate(max_tokens=200, stop=[]).stream_tokens()
    tokens = [await anext(long)]  # and then it is not read for a while
    second = Context(Model.load()).append(list(range(30, 40)))
    await second.generate(max_tokens=20, stop=[]).collect_tokens()
    tokens += [token async for token in long]
    return str(len(tokens))
"""


def test_a_context_opened_beside_a_generation_does_not_wait_for_it(client: Client) -> None:
    program = client.upload(BESIDE, name="beside")
    assert client.launch(program).result() == "200"
