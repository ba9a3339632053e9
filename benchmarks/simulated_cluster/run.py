"""`simulate`: where a cluster would place the launches of a trace, beside two random choices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import click

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.simulated_cluster.simulation import ARRIVALS, Outcome, Scenario, Simulation
from benchmarks.simulated_cluster.traces import BadTrace, Launch, read_trace, sample
from pie_cluster.directory.node import Node
from pie_cluster.directory.table import Keys, Table, cached
from pie_py.bench.report import Goal, Report, percentile

BASELINE, CACHED = "two-choices", "cached"
PROMPTS = ", by prompt"
NAMED = ("arrivals", "policy", "launches", "hits %")
SECONDS = ("first token p50 ms", "p99 ms", "later p99 ms")


def two_choices(keys: Keys, now: float, table: Table, random: Random) -> Node | None:
    """The less loaded of two random nodes (Mitzenmacher, 2001); knows nothing of caches."""
    room = table.room
    if not len(room):
        return None
    places = room.draw(random), room.draw(random)
    return room.members[min(places, key=lambda place: room.seconds(place, now, 1.0))]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where a cluster would place the launches of a trace, beside two random choices.

    A trace is a file of Mooncake's JSON lines. It is repeated, with other users, until it makes up
    the load.
    """

    trace: str = options.option("--trace", default="sample", help="A file; `sample` is made here.")
    chats: bool = options.option(
        "--chats", is_flag=True, help="All launches are chats, told apart by their prompts alone."
    )
    nodes: int = options.count("--nodes", 2000, "Nodes of the cluster.")
    load: float = options.real("--load", 0.8, "Prompt tokens that come, of what all could compute.")
    seconds: float = options.real("--seconds", 60.0, "Measured, after as many more.")
    report_seconds: float = options.real(
        "--report-seconds", 5.0, "Between two reports of a node: how old loads get."
    )
    lines: int = options.count("--lines", 100_000, "Of the trace, at most.")
    seed: int = options.option("--seed", default=1, help="The same seed gives the same figures.")


def simulate(settings: Settings, progress: Progress) -> Report:
    """Simulates both policies under each kind of arrivals."""
    try:
        policies = {BASELINE: (two_choices, False), CACHED: (cached, False)}
        launches = _launches(settings)
        if settings.chats:
            policies[CACHED + PROMPTS] = (cached, True)
            launches = [replace(launch, program="http_answer") for launch in launches]
    except BadTrace as error:
        raise click.ClickException(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{settings.trace} cannot be read: {error}") from None
    times = settings.seconds, settings.seconds, settings.report_seconds
    scenario = Scenario(settings.nodes, settings.load, *times, settings.seed)
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
        return sample()[: settings.lines]
    with Path(settings.trace).open(encoding="utf-8") as lines:
        return read_trace(lines, settings.trace, settings.lines)


def _report(outcomes: dict[tuple[str, str], Outcome], settings: Settings) -> Report:
    report = Report(
        f"{settings.nodes} nodes, prompts of {settings.load:g} of what they could compute, loads up"
        f" to {settings.report_seconds:g} s old",
        [*NAMED, *SECONDS, "fullest of mean"],
        notes=[
            "Hits: tokens of launches' prompts that were cached. Fullest: memory in use over time."
        ],
    )
    for (arrivals, name), found in outcomes.items():
        first = [percentile(found.first, share) * 1000 for share in (0.5, 0.99)]
        later = percentile(found.later, 0.99) * 1000 if found.later else None
        figures = [found.hit_share * 100, *first, later, found.fullest]
        report.rows.append([arrivals, name, len(found.first), *figures])
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
