"""The tests for a GPU, on one that is simulated: FlashInfer's host code, devices, order, and
waiting.

It shows that the worker's CUDA code holds to the rules, not what any kernel computes or takes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).parent.parent
SIMULATED = TESTS / "simulated_gpu"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("flashinfer") is None,
        reason="needs FlashInfer's host code: pip install --no-deps flashinfer-python==0.6.6",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="needs Triton, which interprets its kernels: pip install triton",
    ),
]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module in a process that has the simulated GPU, as have those that it starts."""
    paths = [str(SIMULATED / "site"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def check(names: str, tmp_path: Path, *arguments: str) -> None:
    """Runs tests on the simulated GPU: just these, none of them skipped, and all pass.

    Args:
        names: of the test functions that must run, each once or with several parameters.
        tmp_path: an empty folder.
        arguments: files and options for pytest.
    """
    report = tmp_path / "report.xml"
    plugin = ("-p", "simulated_gpu.plugin", "-p", "no:cacheprovider", "-o", "addopts=")
    done = run("pytest", "-q", "--tb=short", f"--junitxml={report}", *plugin, *arguments)
    assert report.exists(), f"pytest did not start:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    passed: set[str] = set()
    problems: list[str] = []
    for case in ElementTree.parse(report).iter("testcase"):
        name = str(case.get("name"))
        found = [case.find(kind) for kind in ("failure", "error", "skipped")]
        if problem := next((each for each in found if each is not None), None):
            problems.append(f"{name}: {problem.text or problem.get('message')}")
        else:
            passed.add(name.partition("[")[0])
    if problems:
        pytest.fail("\n\n".join([f"{len(problems)} inner tests", *problems]), pytrace=False)
    assert passed == set(names.split())
    assert done.returncode == 0, done.stdout[-4000:]


RULES = """
    test_it_computes test_tensors_of_two_devices test_a_stream_that_reads_what_another_writes
    test_the_host_reads_what_is_still_copied test_the_host_writes_what_is_still_copied
    test_parts_of_pinned_memory_are_apart test_copies_that_cannot_be_left_alone
    test_memory_that_is_freed_while_another_stream_uses_it test_what_makes_the_host_wait
    test_what_does_not test_a_graph_runs_again_on_the_same_memory
    test_a_graph_of_memory_that_is_freed test_waiting_while_a_graph_is_recorded
    test_times_before_they_are_there test_more_memory_than_there_is
    test_memory_holds_anything_before_it_is_written
"""
FUSED_SAMPLING = """
    test_tokens_are_those_of_the_cpu test_a_batch_of_all_kinds test_masks
    test_log_probabilities_are_those_before_penalties
    test_what_is_no_number_counts_as_ruled_out test_a_search_among_neighbouring_numbers_ends
"""
WAITS = """
    test_prompts_and_distributions test_steps_that_decode test_a_step_that_decodes_is_few_launches
    test_sampling_of_every_kind test_moving test_masks test_adapters_and_observed_attention
    test_families test_images
"""
GPU = """
    test_every_family_in_mixed_batches test_rules_of_every_kind_in_one_batch
    test_pages_that_are_not_full_amid_the_context test_steps_of_every_size_share_buffers
    test_batches_that_are_too_large_or_observed_run_without_a_graph
    test_switches_change_no_result test_numbers_of_heads test_8_bit_keys
    test_long_contexts_are_split_among_multiprocessors test_an_image_amid_text
    test_the_utilization_is_kept test_a_pool_that_does_not_fit_is_told
    test_swaps_run_beside_kernels_and_lose_nothing test_every_kind_of_batch
    test_a_swap_out_and_in_again_in_one_plan test_masks_and_a_failing_batch_amid_others
    test_adapters test_many_plans_in_flight
"""


def test_the_simulation_finds_mistakes(tmp_path: Path) -> None:
    check(RULES, tmp_path, str(SIMULATED / "test_rules.py"))


def test_fused_sampling_takes_the_same_tokens(tmp_path: Path) -> None:
    check(FUSED_SAMPLING, tmp_path, str(SIMULATED / "test_fused_sampling.py"))


def test_the_host_waits_for_nothing(tmp_path: Path) -> None:
    check(WAITS, tmp_path, str(SIMULATED / "test_waits.py"))


def test_kernels_handlers_and_memory(tmp_path: Path) -> None:
    files = ("test_attention.py", "test_handlers.py", "test_gpu_images.py", "test_gpu_memory.py")
    # What they do without graphs, they do with them.
    chosen = ["-k", "not (mixed_batches and False)"]
    check(GPU, tmp_path, *(str(TESTS / "gpu" / name) for name in files), *chosen)


def test_a_whole_server(tmp_path: Path) -> None:
    server = str(TESTS / "gpu" / "test_server.py")
    check("test_more_pages_than_there_are", tmp_path, server, "-k", "more_pages")


SIZES = {"graph_batch": 4, "kv_pages": 200}
BATCH = {"embeds": 600, "max_batch_tokens": 512}


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        (["decode", "--count", "1", "3", "--context", "40", "--steps", "6"], SIZES | BATCH),
        (["prefill", "--length", "64", "256"], SIZES),
        (["swap", "--count", "2", "--context", "40", "--steps", "6"], SIZES | BATCH),
    ],
)
def test_phases_of_the_benchmark(arguments: list[str], sizes: dict[str, int]) -> None:
    """Each ends with figures. Those say nothing."""
    shape = ("--shape", "toy", "--config", json.dumps(sizes))
    done = run("benchmarks.gpu", *arguments, *shape)
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout
