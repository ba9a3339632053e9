"""`simulate`: where a cluster would place the launches of a trace, beside two random choices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.simulated_cluster.sample import sample_lines
from benchmarks.simulated_cluster.simulation import (
    ARRIVALS,
    Outcome,
    Scenario,
    Simulation,
)
from benchmarks.simulated_cluster.traces import BadTrace, Launch, read_trace
from pie_cluster.directory.policies import POLICIES, load_policy
from pie_py.bench.report import Goal, Report, percentile
from pie_py.config.plugins import UnknownPolicy

BASELINE = "two-choices"
PROMPTS = ", by prompt"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where a cluster would place the launches of a trace, beside two random choices.

    A trace is a file of Mooncake's JSON lines. It is repeated, with other users, until it makes up
    the load.
    """

    trace: str = options.option("--trace", default="sample", help="A file; `sample` is made here.")
    policy: str = options.option(
        "--policy", default="cached", help="Its name, or package.module:function."
    )
    chats: bool = options.option(
        "--chats",
        is_flag=True,
        help="All launches are chats over HTTP: of one program, told apart by their prompts.",
    )
    nodes: int = options.option(
        "--nodes", default=2000, type=click.IntRange(1, 16384), help="Nodes of the cluster."
    )
    load: float = options.option(
        "--load",
        default=0.8,
        type=click.FloatRange(0, 100, min_open=True),
        help="Prompt tokens that come, as a share of what all nodes could compute.",
    )
    seconds: float = options.option(
        "--seconds",
        default=60.0,
        type=click.FloatRange(1, 1e6),
        help="Measured, after as many more.",
    )
    report_seconds: float = options.option(
        "--report-seconds",
        default=5.0,
        type=click.FloatRange(0.1, 1e6),
        help="Between two reports of a node: how old loads get.",
    )
    lines: int = options.count("--lines", 100_000, "Of the trace, at most.")
    seed: int = options.option("--seed", default=1, help="The same seed gives the same figures.")


def simulate(settings: Settings, progress: Progress) -> Report:
    """Simulates both policies under each kind of arrivals."""
    try:
        policies = {
            BASELINE: (POLICIES[BASELINE], False),
            settings.policy: (load_policy(settings.policy), False),
        }
        launches = _launches(settings)
        if settings.chats:
            policies[settings.policy + PROMPTS] = (policies[settings.policy][0], True)
            launches = [replace(launch, program="http_answer") for launch in launches]
    except UnknownPolicy as error:
        raise click.UsageError(str(error)) from None
    except BadTrace as error:
        raise click.ClickException(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{settings.trace} cannot be read: {error}") from None
    scenario = Scenario(
        settings.nodes,
        settings.load,
        settings.seconds,
        settings.seconds,
        settings.report_seconds,
        settings.seed,
    )
    progress.expect(len(ARRIVALS) * len(policies))
    outcomes: dict[tuple[str, str], Outcome] = {}
    for arrivals, variation in ARRIVALS.items():
        for name, (decide, prompts) in policies.items():
            simulation = Simulation(launches, scenario, decide, variation, prompts=prompts)
            outcomes[arrivals, name] = simulation.run()
            progress(f"{arrivals} arrivals, {name}")
    return _report(outcomes, settings)


def _launches(settings: Settings) -> list[Launch]:
    if settings.trace == "sample":
        return read_trace(sample_lines(), "sample", settings.lines)
    with Path(settings.trace).open(encoding="utf-8") as lines:
        return read_trace(lines, settings.trace, settings.lines)


def _report(outcomes: dict[tuple[str, str], Outcome], settings: Settings) -> Report:
    report = Report(
        f"{settings.nodes} nodes, prompts of {settings.load:g} of what they could compute, loads up"
        f" to {settings.report_seconds:g} s old",
        [
            "arrivals",
            "policy",
            "launches",
            "hits %",
            "all hits %",
            "first token p50 ms",
            "p99 ms",
            "later p99 ms",
            "fullest/mean",
        ],
        notes=[
            "Hits: tokens of launches' prompts that were cached; all: later turns included, which"
            " stay where they are. Fullest: memory in use, over the time that is measured."
        ],
    )
    for (arrivals, name), found in outcomes.items():
        first = [percentile(found.first, share) * 1000 for share in (0.5, 0.99)]
        later = percentile(found.later, 0.99) * 1000 if found.later else None
        shares = [found.hit_share * 100, found.all_share * 100]
        row = [arrivals, name, len(found.first), *shares, *first, later, found.fullest]
        report.rows.append(row)
        blind = outcomes.get((arrivals, name.removesuffix(PROMPTS)))
        if blind is not found and blind and blind.hits:
            gain = found.hit_share / blind.hit_share
            what = f"{arrivals}: prefix hits by prompt over those by program"
            # Not much more: what a launch without a prompt saves is learned from reports.
            report.goals.append(Goal(what, gain, 1.0, at_most=False))
        if name == BASELINE or not found.first or (arrivals, name + PROMPTS) in outcomes:
            continue
        base = outcomes[arrivals, BASELINE]
        p99 = percentile(found.first, 0.99) / percentile(base.first, 0.99)
        report.goals.append(Goal(f"{arrivals}: first token's p99 over {BASELINE}'s", p99, 0.5))
        report.goals.append(Goal(f"{arrivals}: fullest node over the mean", found.fullest, 1.6))
        if base.hits:
            gain = found.hit_share / base.hit_share
            what = f"{arrivals}: prefix hits over {BASELINE}'s"
            report.goals.append(Goal(what, gain, 3.0, at_most=False))
    return report


BENCHMARK = Benchmark(Settings, simulate)
