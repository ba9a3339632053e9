"""`python -m pie_control.interception.simulate`: runs of the simulator, told and answered in JSON.

Read from standard input: `{"costs": kv-costs, "memory": tokens, "host": tokens, "runs": [{"system": name,
"requests": [...]}]}`; written: a list of outcomes. A *system* is a policy's name or import path, or `vllm`:
discard, whoever comes back queues behind all others, and a step computes contexts or decodes.
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
    json.dump([_run(run, machine) for run in told["runs"]], sys.stdout)


def _run(run: dict[str, Any], machine: Machine) -> dict[str, Any]:
    system = run["system"]
    policy = load_policy("discard" if system == "vllm" else system)
    machine = replace(machine, tail=system == "vllm", within_budget=system != "swap")
    requests = [
        Request(r["arrival"], r["kind"], r["prompt"], tuple(Segment(*s) for s in r["segments"]))
        for r in run["requests"]
    ]
    outcome = simulate(requests, machine, policy)
    return {**asdict(outcome), "wasted": wasted(outcome, machine)}


if __name__ == "__main__":
    main()
