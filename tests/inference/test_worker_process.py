"""The worker as a process on a real socket: hello, plans, errors, its ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq
from support.checkpoints import make_llama
from support.model_rig import expected_logits, forward_of, ints
from support.workers import SECONDS, Worker

from pie_inference.serving.engine import Engine
from pie_inference.serving.worker import _Inbox
from pie_py.config.model import ModelConfig
from pie_py.config.turns import BUDGET_SECONDS
from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import (
    Batch,
    CopyKv,
    Cut,
    EmbedText,
    Failed,
    Hello,
    MaskKv,
    NextDist,
    NoTokens,
    Plan,
    PlanResult,
)

PROMPT = [5, 9, 33, 120, 7]


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as found:
        yield found


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Worker]:
    """One that has started, for tests after which it goes on."""
    with Worker() as found:
        found.start(folder)
        yield found


def prompt_plan(number: int = 1) -> Plan:
    """Embeds the prompt, runs it into page 3 and asks for the next token."""
    count = len(PROMPT)
    return Plan(
        number,
        "llama",
        [
            EmbedText(ints(PROMPT), ints(range(count)), ints(range(count))),
            forward_of([count], range(48, 48 + count), [[200]]),
            NextDist(ints([200]), ints([4])),
        ],
    )


def test_a_second_plan_waits_at_the_worker(running: Worker) -> None:
    for number in (1, 2, 3):
        running.send(prompt_plan(number))
    answers = [running.receive() for _ in range(3)]
    assert all(isinstance(answer, PlanResult) for answer in answers)
    assert [(a.id, a.first, a.last) for a in answers] == [(n, 0, True) for n in (1, 2, 3)]  # type: ignore[union-attr]
    idle = [a.idle_ns for a in answers]  # type: ignore[union-attr]
    assert idle[0] == 0, "they are its first"
    assert min(idle[1:]) > 0


def test_a_cut_is_seen_while_its_plan_runs() -> None:
    plan = prompt_plan(2)
    with zmq.Context() as context, context.socket(zmq.PAIR) as control:
        control.bind("inproc://worker")
        with context.socket(zmq.PAIR) as own:
            own.connect("inproc://worker")
            inbox = _Inbox(own, None)
            for message in (Cut("llama", 1), plan):
                control.send(encode(message))
            assert not inbox.is_cut(plan)
            control.send(encode(Cut("llama", 2)))
            assert inbox.is_cut(plan)
            taken = inbox.take()
            assert isinstance(taken, Plan)
            assert taken.id == 2
            assert inbox.is_empty


def test_a_worker_says_hello_runs_plans_and_stops(worker: Worker, folder: Path) -> None:
    hello = worker.start(folder)
    assert isinstance(hello, Hello)
    assert hello.pid == worker.process.pid
    assert hello.device == "cpu"
    assert [model.name for model in hello.models] == ["llama"]
    wanted = expected_logits(folder, PROMPT)[-1].softmax(0).topk(4)
    for number in (1, 2):
        results = worker.run(prompt_plan(number))
        assert [r.error for r in results] == [None] * 3
        assert all(r.nanoseconds > 0 for r in results)
        found = results[2].values
        assert found is not None
        np.testing.assert_array_equal(found.tokens[0], wanted.indices)
        np.testing.assert_allclose(found.probabilities[0], wanted.values, rtol=1e-3)
    assert worker.stop() == 0


def test_bad_batches_get_errors_and_the_worker_goes_on(running: Worker) -> None:
    good = prompt_plan().batches
    broken: list[tuple[Batch, str]] = [
        (EmbedText(ints([9999]), ints([0]), ints([0])), "token: 9999 is outside"),
        (EmbedText(ints([1]), ints([-1]), ints([0])), "position: -1 is outside"),
        (EmbedText(ints([1]), ints([0]), ints([512])), "embed: 512 is outside"),
        (EmbedText(ints([1, 2]), ints([0]), ints([0])), "different shapes"),
        (CopyKv(ints([0]), ints([64 * 16])), "target: 1024 is outside"),
        (MaskKv(ints([64]), np.array([1], np.uint32)), "page: 64 is outside"),
        (NextDist(ints([0]), ints([0])), "k is not in"),
        (forward_of([], [], [], mask_starts=[0, 5]), "mask_starts"),
        (
            forward_of([1], [-1], [[9]], page_starts=[0, 1], pages=[77], page_used=[3]),
            "page: 77 is outside",
        ),
        (forward_of([1], [-1], [[9, 10]]), "more outputs than inputs"),
        (forward_of([1], [-1], [[9]], mask_starts=[0, 2], mask=[1, 7]), "mask row 0"),
        # A mistake that no check foresees: the handler's exception comes back.
        (
            EmbedText(ints([1]).reshape(1, 1), ints([0]).reshape(1, 1), ints([0]).reshape(1, 1)),
            "embed_text",
        ),
    ]
    results = running.run(Plan(7, "llama", [*(batch for batch, _ in broken), *good]))
    for (_, reason), result in zip(broken, results, strict=False):
        assert result.error is not None
        assert reason in result.error
    assert [r.error for r in results[len(broken) :]] == [None] * 3
    stranger = running.run(Plan(8, "stranger", list(good)))
    assert all("no model 'stranger'" in (r.error or "") for r in stranger)
    assert running.run(prompt_plan(9))[2].error is None


def test_results_do_not_wait_for_a_long_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine([ModelConfig(source=str(folder), kv_pages=64, embeds=256)])
    first, again = prompt_plan(1), prompt_plan(2)
    parts: list[PlanResult] = []
    # However busy the machine is, these forwards count as short ones.
    monkeypatch.setattr("pie_inference.serving.engine.LONG_NS", 1 << 60)
    whole = engine.run(Plan(1, "llama", first.batches + again.batches), parts.append)
    assert (parts, len(whole.results), whole.last) == ([], 6, True)  # short forwards
    monkeypatch.setattr("pie_inference.serving.engine.LONG_NS", 0)
    rest = engine.run(Plan(2, "llama", first.batches + again.batches + first.batches), parts.append)
    # What comes before the first forward has no values; nothing is sent for its sake.
    assert [(p.id, p.first, len(p.results), p.last) for p in parts] == [
        (2, 0, 4, False),
        (2, 4, 3, False),
    ]
    assert (rest.first, len(rest.results), rest.last) == (7, 2, True)
    silent, more = [*first.batches, *again.batches[:2], *first.batches], list[PlanResult]()
    engine.run(Plan(3, "llama", silent), more.append)
    assert [(p.first, len(p.results)) for p in more] == [(0, 4)]  # the second has no values
    answers = [r for p in (*parts, rest) for r in p.results if r.values is not None]
    assert len(answers) == 3
    for answer in answers:
        assert answer.values is not None
        assert whole.results[2].values is not None
        np.testing.assert_array_equal(answer.values.tokens, whole.results[2].values.tokens)
    sent = decode(encode(parts[1]))
    assert isinstance(sent, PlanResult)
    assert (sent.first, sent.last, len(sent.results)) == (4, False, 3)


def test_a_model_that_cannot_be_loaded_is_told_and_ends_the_worker(
    worker: Worker, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path / "spoiled")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    failed = worker.start(folder)
    assert isinstance(failed, Failed)
    assert "model.safetensors cannot be read" in failed.reason
    assert worker.process.wait(SECONDS) == 1


def test_the_terminals_interrupt_does_not_end_it(running: Worker) -> None:
    running.process.send_signal(signal.SIGINT)
    assert running.run(prompt_plan())[2].error is None


def test_it_ends_when_its_parent_dies(worker: Worker, folder: Path) -> None:
    """A parent that is killed can stop nobody."""
    starter = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE);"
        " p.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", starter, *worker.command(folder)])
    hello = worker.receive()
    assert isinstance(hello, Hello)
    process = psutil.Process(hello.pid)
    assert hello.pid != parent.pid
    parent.kill()
    parent.wait()
    end = time.monotonic() + SECONDS
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_wrong_options_are_a_usage_error() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pie_inference",
            "--connect",
            "ipc://x",
            "--config",
            '{"models": []}',
        ],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"--config" in done.stderr


@pytest.mark.nightly
def test_long_turns_are_told(running: Worker) -> None:
    running.send(NoTokens("llama", [7] * 3_000_000))
    running.send(prompt_plan())
    found = running.receive()
    assert isinstance(found, PlanResult)
    assert found.long_turns == 1
    assert found.longest_turn > BUDGET_SECONDS
