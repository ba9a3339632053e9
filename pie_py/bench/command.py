"""`pie-py bench`: what an operator measures of a machine."""

from __future__ import annotations

from pie_py.bench.benchmark import Benchmarks

MODULES = {
    "launch": "pie_py.bench.launch",
    "idle": "pie_py.bench.idle",
    "fairness": "pie_py.bench.fairness",
    "hot-path": "pie_py.bench.hot_path",
}

command = Benchmarks(
    MODULES,
    name="bench",
    help="Measure this machine: launches, instances that wait, tokens. Each starts its own server.",
)
