"""Traces are read, broken ones refused in a line, and a small cluster is simulated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.simulated_cluster.run import two_choices
from benchmarks.simulated_cluster.simulated_node import Machine, SimulatedNode
from benchmarks.simulated_cluster.simulation import ARRIVALS, Outcome, Scenario, Simulation
from benchmarks.simulated_cluster.traces import BadTrace, Launch, read_trace, sample
from pie_cluster.directory.table import cached

MOONCAKE = '{"timestamp": 27000, "input_length": 1024, "output_length": 52, "hash_ids": [46, 47]}'
SAMPLE = sample()
POLICIES = {"two-choices": two_choices, "cached": cached}


def test_mooncakes_lines_are_read() -> None:
    later = MOONCAKE.replace("27000", "28500").replace("47", "99")
    launches = [
        Launch(0.0, 1024, 52, (46, 47), program="block 46"),
        Launch(1.5, 1024, 52, (46, 99), program="block 46"),
    ]
    assert read_trace([later, "", MOONCAKE], "x", most=9) == launches
    assert read_trace([MOONCAKE, later], "x", most=1) == launches[:1]
    assert len({(one.user, one.program) for one in SAMPLE}) > 20


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it has no lines"),
        (f"{MOONCAKE}\n{MOONCAKE[:-5]}", ":2: "),
        (f"{MOONCAKE}\nnonsense", ":2: "),
        (MOONCAKE.replace("1024", "-1"), ":1: Expected `int` >= 0"),
        (MOONCAKE.replace("1024", "512"), ":1: hash_ids has 2 blocks"),
        (MOONCAKE.replace("27000", "1e999"), ":1: "),
        (MOONCAKE.replace('"output_length": 52, ', ""), ":1: Object missing required field"),
        (f"{MOONCAKE}\n{'[' * 100_000}", ":2: "),
    ],
)
def test_broken_traces_end_in_one_line(text: str, told: str) -> None:
    with pytest.raises(BadTrace) as refused:
        read_trace(text.splitlines(), "a trace", most=9)
    (line,) = str(refused.value).splitlines()
    assert line.startswith("a trace")
    assert told in line


def simulate(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "simulate", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_the_command_holds_a_policy_against_two_choices(tmp_path: Path) -> None:
    result = simulate("--nodes", 40, "--seconds", 20, "--json", "--check")
    found = json.loads(result.stdout)
    assert result.returncode == (0 if all(goal["met"] for goal in found["goals"]) else 1)
    assert [row[:2] for row in found["rows"]] == [
        [arrivals, policy] for arrivals in ARRIVALS for policy in ("two-choices", "cached")
    ]
    assert len(found["goals"]) == 6
    chats = json.loads(simulate("--nodes", 40, "--seconds", 20, "--json", "--chats").stdout)
    by_program, by_prompt = (row[3] for row in chats["rows"][1:3])
    assert by_prompt > by_program
    assert [goal["met"] for goal in chats["goals"][::4]] == [True, True]
    (tmp_path / "trace").write_text(MOONCAKE)
    table = simulate("--trace", tmp_path / "trace", "--nodes", 2, "--seconds", 1, "--load", 0.1)
    assert table.returncode == 0, table.stderr
    assert "two-choices" in table.stdout


def run(policy: str, arrivals: str) -> Outcome:
    scenario = Scenario(nodes=20, warm_seconds=10, seconds=10)
    return Simulation(SAMPLE, scenario, POLICIES[policy], ARRIVALS[arrivals]).run()


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
    assert (report.load.instances, report.load.used_tokens) == (2, 2068)
    assert report.cached == [(7, 1024)]
