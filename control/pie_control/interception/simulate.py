"""`python -m pie_control.interception.simulate`: runs of the simulator, told and answered in JSON.

Read from standard input: `{"costs": kv-costs, "memory": tokens, "host": tokens, "runs": [{"system": name,
"requests": [...]}]}`; written: the outcome of each run as it ends, a line each. A *system* is a policy's name
or import path, or `vllm`: discard, and whoever comes back queues behind all others. In `vllm` and `discard`,
which differ in that order alone (InferCept's *ImprovedDiscard*), a step computes whole contexts or decodes;
in the others it does both, in chunks.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import Any

from pie_control.interception.costs import Costs
from pie_control.interception.policy import load_policy
from pie_control.interception.simulation import Machine, Request, Segment, simulate, wasted


def main() -> None:
    """Reads, simulates, writes."""
    told = json.load(sys.stdin)
    machine = Machine(Costs.measured(told["costs"]), told["memory"], told["host"])
    for run in told["runs"]:
        print(json.dumps(_run(run, machine)), flush=True)


def _run(run: dict[str, Any], machine: Machine) -> dict[str, Any]:
    system = run["system"]
    policy = load_policy("discard" if system == "vllm" else system)
    machine = replace(
        machine,
        tail=system == "vllm",
        chunked=system not in ("vllm", "discard"),
        within_budget=system != "swap",
    )
    requests = [
        Request(r["arrival"], r["kind"], r["prompt"], tuple(Segment(*s) for s in r["segments"]))
        for r in run["requests"]
    ]
    outcome = simulate(requests, machine, policy)
    return {**asdict(outcome), "wasted": wasted(outcome, machine)}


if __name__ == "__main__":
    main()
