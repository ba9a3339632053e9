"""Traces are read, broken ones refused in a line, and a small cluster is simulated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.simulated_cluster.sample import SAMPLE, sample_lines
from benchmarks.simulated_cluster.simulated_node import Machine, SimulatedNode
from benchmarks.simulated_cluster.simulation import ARRIVALS, Outcome, Scenario, Simulation
from benchmarks.simulated_cluster.traces import BadTrace, Launch, read_trace
from pie_cluster.directory.policies import POLICIES

MOONCAKE = '{"timestamp": 27000, "input_length": 1024, "output_length": 52, "hash_ids": [46, 47]}'
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,230,1317,API log\n"
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n"
)


def written(folder: Path, text: str | bytes) -> Path:
    file = folder / "trace"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_mooncakes_lines_are_read(tmp_path: Path) -> None:
    later = MOONCAKE.replace("27000", "28500").replace("47", "99")
    assert read_trace(written(tmp_path, f"{later}\n\n{MOONCAKE}\n")) == [
        Launch(0.0, 1024, 52, (46, 47), program="block 46"),
        Launch(1.5, 1024, 52, (46, 99), program="block 46"),
    ]


@pytest.mark.parametrize(
    ("text", "launches"),
    [
        (BURSTGPT, [(0.0, 472, 18), (40.5, 1087, 230)]),
        (AZURE, [(0.0, 4808, 10), (0.052, 3180, 8)]),
        (AZURE_2024, [(0.0, 2162, 5), (0.99007, 2399, 6)]),
    ],
    ids=["BurstGPT", "Azure 2023", "Azure 2024"],
)
def test_tables_are_read(tmp_path: Path, text: str, launches: list[tuple[float, int, int]]) -> None:
    found = read_trace(written(tmp_path, text))
    assert [(round(one.at, 4), one.prompt, one.output) for one in found] == [
        (round(at, 4), prompt, output) for at, prompt, output in launches
    ]
    assert len(read_trace(written(tmp_path, text), most=1)) == 1


BROKEN = [
    ("", "it has no lines"),
    (b"\xff\xfe{", "no text in UTF-8"),
    ("a,b\n1,2\n", ":1: neither"),
    (f"{MOONCAKE}\n{MOONCAKE[:-5]}\n", ":2: "),
    (f"{MOONCAKE}\nnonsense\n", ":2: "),
    (MOONCAKE.replace("1024", "-1"), ":1: Expected `int` >= 0"),
    (MOONCAKE.replace("1024", "512"), ":1: hash_ids has 2 blocks"),
    (MOONCAKE.replace("27000", "1e999"), ":1: "),
    (MOONCAKE.replace('"output_length": 52, ', ""), ":1: Object missing required field"),
    (f"{MOONCAKE}\n{'[' * 100_000}", ":2: "),
    (BURSTGPT + "50,GPT-4\n", ":4: a column is missing"),
    (BURSTGPT + "50,GPT-4,many,1,1,API log\n", ":4: invalid literal"),
    (BURSTGPT + "nan,GPT-4,1,1,1,API log\n", ":4: a number is out of range"),
    (AZURE + "yesterday,1,1\r\n", ":4: 'yesterday' is no time"),
    (AZURE + "2023-13-16 18:17:03.9799600,1,1\r\n", ":4: "),
    (AZURE + "2023-11-16 18:17:05,1,-1\r\n", ":4: a number is out of range"),
]


@pytest.mark.parametrize(("text", "told"), BROKEN, ids=[told for _, told in BROKEN])
def test_broken_traces_end_in_one_line(tmp_path: Path, text: str | bytes, told: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(BadTrace) as refused:
        read_trace(file)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(str(file))
    assert told in line


def simulate(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "simulate", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_wrong_options(tmp_path: Path) -> None:
    for options in (("--policy", "nonsense"), ("--nodes", 0)):
        assert simulate(*options).returncode == 2
    missing = simulate("--trace", "missing.jsonl")
    assert missing.returncode == 1
    assert "Error: missing.jsonl: No such file or directory" in missing.stderr
    broken = simulate("--trace", written(tmp_path, "a,b\n1,2\n"))
    assert broken.returncode == 1
    assert ":1: neither" in broken.stderr


def test_the_sample_is_what_its_generator_writes() -> None:
    assert SAMPLE.read_text().splitlines() == list(sample_lines())
    assert len({(one.user, one.program) for one in read_trace(SAMPLE)}) > 20


def test_the_command_holds_a_policy_against_two_choices(tmp_path: Path) -> None:
    result = simulate("--nodes", 40, "--seconds", 20, "--json", "--check")
    found = json.loads(result.stdout)
    assert result.returncode == (0 if all(goal["met"] for goal in found["goals"]) else 1)
    assert [row[:2] for row in found["rows"]] == [
        [arrivals, policy] for arrivals in ARRIVALS for policy in ("two-choices", "cached")
    ]
    assert len(found["goals"]) == 6
    chats = json.loads(simulate("--nodes", 20, "--seconds", 10, "--json", "--chats").stdout)
    by_program, by_prompt = (row[3] for row in chats["rows"][1:3])
    assert by_prompt > 1.05 * by_program
    assert [goal["met"] for goal in chats["goals"][::4]] == [True, True]
    trace = written(tmp_path, BURSTGPT)
    table = simulate("--trace", trace, "--nodes", 2, "--seconds", 1, "--load", 0.1)
    assert table.returncode == 0, table.stderr
    assert "two-choices" in table.stdout


def run(policy: str, arrivals: str) -> Outcome:
    scenario = Scenario(nodes=20, warm_seconds=10, seconds=10)
    return Simulation(read_trace(SAMPLE), scenario, POLICIES[policy], ARRIVALS[arrivals]).run()


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_all_policies_serve_the_same_launches_again_and_again(arrivals: str) -> None:
    outcomes = {name: run(name, arrivals) for name in POLICIES}
    assert len({round(sum(one.held)) for one in outcomes.values()}) > 1
    for name, outcome in outcomes.items():
        assert 0 < outcome.hits < outcome.prompt
        assert min(outcome.first) > 0
        assert run(name, arrivals) == outcome


def test_a_simulated_node_computes_what_is_not_cached() -> None:
    node = SimulatedNode("n1", Machine(prefill_rate=1000, step_seconds=0, instance_seconds=0))
    launch = Launch(0.0, 1024, 10, (1, 2))
    assert node.begin(7, launch, (1, 2), 0.0) == (1.024, 0, 1024)
    assert node.report(0.5).load.queued_tokens == 524
    again = node.begin(7, launch, (1, 2), 2.0)  # all but the last token is there
    assert again.hits == 1023
    assert again.at == pytest.approx(2.001)
    report = node.report(2.0)
    assert (report.number, report.load.instances, report.load.used_tokens) == (2, 2, 2068)
    assert report.cached == [(7, 1024)]


def test_a_simulated_node_gives_up_blocks_for_instances() -> None:
    node = SimulatedNode("n1", Machine(pool_tokens=4096))
    node.begin(7, Launch(0.0, 1024, 0, (1, 2)), (1, 2), 0.0)
    assert not node.has_room(4000)
    node.report(0.0)
    node.begin(8, Launch(0.0, 2048, 0, (3, 4, 5, 6)), (3, 4, 5, 6), 1.0)
    report = node.report(1.0)
    assert dict(report.cached) == {7: 0, 8: 2048}  # the ends of prompts go first
    node.end(2048, 2.0)
    assert node.held(3.0) == 1024 * 3 + 2048
