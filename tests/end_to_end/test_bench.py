"""The benchmarks run and print what they promise; their figures are for people to judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support.rust_components import use_toolchain
from transformers import AutoModelForCausalLM, AutoTokenizer

from pie_control import tracing as control_tracing
from pie_inference import tracing as worker_tracing
from pie_py.bench import peers
from pie_py.bench.checkpoints import Shape, make_checkpoint
from pie_py.bench.peers import PeerFailed
from pie_py.bench.stages import Trace
from pie_py.wire.trace import StageClock


def bench(*arguments: str) -> dict[str, Any]:
    use_toolchain()
    done = subprocess.run(
        [sys.executable, "-m", "pie_py", "bench", *arguments, "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert all(len(row) == len(report["columns"]) for row in report["rows"])
    return report


@pytest.mark.slow
def test_launch(checkpoint: Path) -> None:
    report = bench("launch", "--at-once", "1,3", "--rounds", "1", "--model", str(checkpoint))
    assert [row[:2] for row in report["rows"]] == [
        ["rust", 1],
        ["rust", 3],
        ["python", 1],
        ["python", 3],
    ]
    assert all(figure > 0 for row in report["rows"] for figure in row[2:])


@pytest.mark.slow
def test_calls(checkpoint: Path) -> None:
    report = bench("calls", "--live", "1,5", "--count", "1000", "--model", str(checkpoint))
    calls = {"monotonic-now", "instance-id", "kvpage-used", "pool-stats"}
    assert {row[2] for row in report["rows"]} == calls
    assert len(report["rows"]) == 2 * 2 * len(calls)


@pytest.mark.slow
def test_compare(checkpoint: Path) -> None:
    report = bench(
        *("compare", "--at-once", "1,4", "--rounds", "1", "--prompt", "8", "--tokens", "8"),
        *("--model", str(checkpoint), "--peer", "ideal"),
    )
    sides = ["ideal", "rust", "python"]
    assert [row[1:3] for row in report["rows"]] == [[n, side] for n in (1, 4) for side in sides]
    assert all(row[3] > 0 and row[5] > 0 for row in report["rows"])
    assert [row[4] for row in report["rows"] if row[2] == "ideal"] == [1.0, 1.0]


def test_peer_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(PeerFailed, match="No such file"),
        peers.ideal(str(tmp_path / "nothing"), 16) as peer,
    ):
        peer.wait_ready()
    with pytest.raises(PeerFailed, match="--vllm-python"):
        peers.vllm(str(tmp_path / "no-python"), "model", 16)


@pytest.mark.slow
def test_stages_add_up(checkpoint: Path) -> None:
    report = bench(
        *("stages", "--at-once", "2", "--prompt", "8", "--tokens", "16", "--source", "rust"),
        *("--model", str(checkpoint)),
    )
    time = dict(report["rows"])
    # Each process's stages are its whole time, so none can take more than all of it.
    stages = [name for name in time if name.startswith(("control: ", "worker: "))]
    assert all(0 <= time[name] <= time["measured"] for name in stages)
    assert time["control: Wasm"] > 0
    assert time["worker: forward: layers"] > 0
    assert time["worker: decode"] > 0
    assert time["of the worker: kernels"] > 0
    host = [time[name] for name in time if name.startswith("of host functions: ")]
    assert sum(host) == pytest.approx(time["control: host functions"])
    total = sum(time[name] for name in stages) + sum(
        time[name] for name in ("message to the worker", "message to control")
    )
    assert time["sum of the stages"] == pytest.approx(total)
    assert time["not accounted for"] == pytest.approx(time["measured"] - total)


def test_what_is_traced_is_there() -> None:
    for tap in (*control_tracing.TAPS, *worker_tracing.TAPS):
        tap.check()


def test_stage_clock_gives_every_moment_to_one_stage() -> None:
    clock = StageClock(["outer", "inner"], "rest")
    inner = clock.timed("inner", lambda: None)
    clock.mark("begin", 1)
    clock.timed("outer", lambda: [inner() for _ in range(100)])()
    clock.mark("end", 1)
    with tempfile.TemporaryDirectory() as folder:
        clock.write(Path(folder) / "trace.json")
        trace = Trace.read(Path(folder) / "trace.json")
    begin, end = trace.marks
    spent = [b - a for a, b in zip(begin.spent, end.spent, strict=True)]
    assert trace.stages == ["outer", "inner", "rest"]
    assert all(time > 0 for time in spent)
    assert sum(spent) == pytest.approx(end.at - begin.at, abs=2e6)


@pytest.mark.slow
def test_capacity(checkpoint: Path) -> None:
    report = bench(
        *("capacity", "--at-once", "2,8", "--rounds", "1", "--prompt", "8", "--tokens", "32"),
        *("--model", str(checkpoint), "--source", "rust"),
    )
    assert [row[:2] for row in report["rows"]] == [["rust", 2], ["rust", 8]]
    assert all(figure > 0 for row in report["rows"] for figure in row[2:])


@pytest.mark.slow
def test_hot_path_is_no_dearer_than_the_kept_numbers_say() -> None:
    # More than some noise above them is a regression: mend it, or keep the new numbers (--save).
    report = bench("hot-path", "--at-once", "8", "--source", "rust", "--prompt", "8")
    assert [row[3] for row in report["rows"]] == ["control", "worker"]
    assert {row[6] > 0 for row in report["rows"]} == {True}
    for name, *_, calls, kept, ratio in report["rows"]:
        assert ratio < 1.25, f"{name}: {calls} calls a token, {kept} are kept"


@pytest.mark.slow
def test_fairness(checkpoint: Path) -> None:
    report = bench(
        *("fairness", "--instances", "2", "--prompt", "8", "--tokens", "16", "--long", "64"),
        *("--model", str(checkpoint), "--max-batch-tokens", "32"),
    )
    assert [row[1] for row in report["rows"]] == ["none", "arrive"]
    assert all(0 < row[2] <= row[3] <= row[4] for row in report["rows"])


@pytest.mark.slow
def test_run_ahead(checkpoint: Path) -> None:
    report = bench(
        *("run-ahead", "--at-once", "2", "--rounds", "1", "--prompt", "8", "--tokens", "16"),
        *("--model", str(checkpoint)),
    )
    assert [row[:2] for row in report["rows"]] == [["rust", 2], ["python", 2]]
    assert all(figure > 0 for row in report["rows"] for figure in row[2:])


@pytest.mark.slow
def test_prefix(checkpoint: Path) -> None:
    report = bench(
        *("prefix", "--requests", "3", "--shared", "48", "--own", "4", "--tokens", "8"),
        *("--rounds", "1", "--source", "rust", "--model", str(checkpoint)),
    )
    assert [row[:2] for row in report["rows"]] == [["rust", "on"], ["rust", "off"]]
    assert all(row[2] > 0 and row[3] > 0 for row in report["rows"])


@pytest.mark.slow
def test_a_peer_ends_with_the_benchmark_that_is_terminated(checkpoint: Path) -> None:
    command = ["compare", "--peer", "ideal", "--at-once", "1", "--model", str(checkpoint)]
    use_toolchain()
    run = subprocess.Popen(
        [sys.executable, "-m", "pie_py", "bench", *command, "--source", "python"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    assert run.stderr.readline().strip() == "all sides are loaded"
    children = psutil.Process(run.pid).children(recursive=True)
    assert any("ideal_loop" in " ".join(child.cmdline()) for child in children)
    run.terminate()
    run.communicate(timeout=60)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_checkpoint_of_the_benchmarks_is_one_of_transformers(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, Shape(512, 64, 128, 2, 4, 2), "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == 512
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 512
    assert tokenizer.decode(tokenizer("def main():")["input_ids"]) == "def main():"
