"""The tests for a GPU, on one that is simulated: FlashInfer's host code, devices, order, and
waiting.

It shows that the worker's CUDA code holds to the rules, not what any kernel computes or takes.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.rust_components import use_toolchain

TESTS = Path(__file__).parent.parent
SIMULATED = TESTS / "simulated_gpu"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test waits for all that run on the simulated GPU
    pytest.mark.skipif(
        importlib.util.find_spec("flashinfer") is None,
        reason="needs FlashInfer's host code: pip install --no-deps flashinfer-python==0.6.6",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="needs Triton, which interprets its kernels: pip install triton",
    ),
]


class Inner:
    """Tests that ran in one process that has the simulated GPU, as have those that it starts.

    What it imports takes 5 seconds.
    """

    def __init__(self, folder: Path) -> None:
        report = folder / "report.xml"
        plugins = ("simulated_gpu.plugin", "pytest_timeout", "no:cacheprovider")
        plugin = (*(part for name in plugins for part in ("-p", name)), "-o", "addopts=")
        files = (*SIMULATED.glob("test_*.py"), *(TESTS / "gpu").glob("test_*.py"))
        arguments = (*plugin, "-o", "timeout=600", "-k", CHOSEN, *map(str, files))
        paths = [str(SIMULATED / "site"), str(TESTS), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # others' plugins take seconds to import
        }
        self.done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "--tb=short",
                f"--junitxml={report}",
                *arguments,
            ],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        said = self.done.stdout[-4000:] + self.done.stderr[-4000:]
        assert report.exists(), f"pytest did not come to its end:\n{said}"
        self._cases = list(ElementTree.parse(report).iter("testcase"))

    def check(self, names: str, *modules: str) -> None:
        """Just these test functions ran, each once or with several parameters, and all passed.

        Args:
            names: of the functions.
            modules: where they are.
        """
        passed: set[str] = set()
        problems: list[str] = []
        for case in self._cases:
            name = str(case.get("name"))
            if str(case.get("classname")).rpartition(".")[2] not in modules:
                continue
            found = [case.find(kind) for kind in ("failure", "error", "skipped")]
            problem = next((each for each in found if each is not None), None)
            if problem is not None:  # an element without children is false
                problems.append(f"{name}: {problem.text or problem.get('message')}")
            else:
                passed.add(name.partition("[")[0])
        if problems:
            pytest.fail("\n\n".join([f"{len(problems)} inner tests", *problems]), pytrace=False)
        assert passed == set(names.split())


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    use_toolchain()  # a whole server needs a program
    return Inner(tmp_path_factory.mktemp("inner"))


# Families whose kernels differ. In batches without rules all are computed with.
DIFFERENT = "gemma2 or qwen2-window or qwen3-moe or llama-yarn"
# Without what asks a real GPU for its speed; and what is done without graphs is done with them.
CHOSEN = (
    "not (mixed_batches and False) and not 256_inferlets"
    f" and (not rules_of_every_kind or {DIFFERENT})"
)
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
    test_what_is_no_number_counts_as_ruled_out test_a_search_among_neighbouring_numbers_ends
"""
WAITS = """
    test_prompts_and_distributions test_steps_that_decode test_a_step_that_decodes_is_few_launches
    test_sampling_of_every_kind test_moving test_masks test_adapters_and_observed_attention
    test_families test_images test_further_steps_of_a_plan
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


def test_the_simulation_finds_mistakes(inner: Inner) -> None:
    inner.check(RULES, "test_rules")


def test_fused_sampling_takes_the_same_tokens(inner: Inner) -> None:
    inner.check(FUSED_SAMPLING, "test_fused_sampling")


def test_the_host_waits_for_nothing(inner: Inner) -> None:
    inner.check(WAITS, "test_waits")


def test_kernels_handlers_and_memory(inner: Inner) -> None:
    files = ("test_attention", "test_handlers", "test_gpu_images", "test_gpu_memory")
    inner.check(GPU, *files)


def test_a_whole_server(inner: Inner) -> None:
    inner.check("test_more_pages_than_there_are", "test_server")


def test_phases_of_the_benchmark(inner: Inner) -> None:
    inner.check("test_each_ends_with_figures", "test_phases")


def test_nothing_else_went_wrong(inner: Inner) -> None:
    assert inner.done.returncode == 0, inner.done.stdout[-4000:]
