"""`python -m benchmarks NAME`: holds pie_py against papers and peers, from a checkout."""

from __future__ import annotations

from benchmarks.benchmark import Benchmarks

MODULES = {
    "compare": "benchmarks.compare",
    "starts": "benchmarks.starts",
    "batch": "benchmarks.batch",
    "idle": "benchmarks.idle",
    "hot-path": "benchmarks.hot_path",
    "capacity": "benchmarks.capacity",
    "walk": "benchmarks.walk.run",
    "http": "benchmarks.http.compare",
    "inferlets": "benchmarks.inferlets.compare",
    "simulate": "benchmarks.simulated_cluster.run",
    "gpu": "benchmarks.gpu.run",
    "laptop": "benchmarks.laptop.compare",
}
main = Benchmarks(
    MODULES,
    name="benchmarks",
    help="Hold pie_py against papers and peers. Each benchmark starts its own servers.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
