"""Options for GPUs reach the configuration, and what no GPU can do is refused."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pie_py.cli import main
from pie_py.cli.server_config import server_config

NOTHING = dict.fromkeys(("endpoint", "file", "threads", "max_instances"), None)


def test_options_of_models_and_of_the_server() -> None:
    config = server_config(
        **NOTHING,
        models=("one", "two"),
        kv_dtype="fp8",
        gpu_memory_utilization=0.5,
        tensor_parallel_size=2,
    )
    assert config.tensor_parallel_size == 2
    assert [(m.kv_dtype, m.gpu_memory_utilization) for m in config.models] == [("fp8", 0.5)] * 2


def test_unless_told_a_server_uses_one_device_and_most_of_it() -> None:
    config = server_config(**NOTHING, models=())
    assert config.tensor_parallel_size == 1
    assert config.models[0].gpu_memory_utilization == 0.9


@pytest.mark.parametrize(
    "options",
    [
        ["--gpu-memory-utilization", "2"],
        ["--kv-dtype", "int3"],
        ["--quantize", "int3"],
        ["--tensor-parallel-size", "0"],
    ],
)
def test_wrong_options_are_a_usage_error(options: list[str]) -> None:
    result = CliRunner().invoke(main, ["serve", *options])
    assert result.exit_code == 2
    assert options[0] in result.output
