"""`python -m benchmarks NAME`: holds pie_py against papers and peers, from a checkout."""

from __future__ import annotations

import click

from pie_py.bench.benchmark import Benchmarks

MODULES = {
    "compare": "benchmarks.compare",
    "starts": "benchmarks.starts",
    "stages": "benchmarks.tracing.stages",
    "prefix": "benchmarks.prefix",
    "capacity": "benchmarks.capacity",
    "walk": "benchmarks.walk.run",
    "async": "benchmarks.async_calls.compare",
    "intercept": "benchmarks.interception.compare",
    "http": "benchmarks.http.compare",
    "http-requests": "benchmarks.http.requests",
    "http-load": "benchmarks.http.load",
    "http-watching": "benchmarks.http.watching",
    "inferlets": "benchmarks.inferlets.compare",
    "simulate": "benchmarks.simulated_cluster.run",
    "cluster": "benchmarks.cluster",
    "device-programs": "benchmarks.device_programs",
    "attend": "benchmarks.attend",
    "kernels": "benchmarks.kernels",
    "gpu": "benchmarks.gpu.run",
    "laptop": "benchmarks.laptop.compare",
    "clients": "benchmarks.clients.run",
    "speculation": "benchmarks.speculation.compare",
}
ATTACKS = Benchmarks(
    {
        name: f"benchmarks.attacks.{name}"
        for name in ("table", "frames", "kills", "soak", "answers", "checkpoints")
    },
    name="attacks",
    help="Attack servers that are started here, and report what came of it.",
)


class AndAttacks(Benchmarks):
    """Benchmarks, one of which is a group of them."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of this name."""
        return ATTACKS if name == ATTACKS.name else super().get_command(context, name)


main = AndAttacks(
    {**MODULES, "attacks": "benchmarks.attacks"},
    name="benchmarks",
    help="Hold pie_py against papers and peers. Each benchmark starts its own servers.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
