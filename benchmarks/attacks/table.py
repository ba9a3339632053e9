"""`table`: every attack against a server with default limits, beside a user who generates text."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace

from benchmarks.attacks.bystander import Bystander, Gaps
from benchmarks.attacks.catalogue import ATTACKS, HTTP, Attack, acts
from benchmarks.attacks.place import MALLORY, VICTIM, Place, place
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.client.errors import ClientError

REST_SECONDS = 1.0  # between two attacks
SLOWED_MS, BROKEN_MS = 1000.0, 5000.0
MOST_MS, MOST_TIMES = 300.0, 3.0  # goals of the bystander's worst and median gap


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Attacks one server by one user, and tells what another one notices."""

    seconds: float = options.real("--seconds", 4.0, "Of each attack.")
    prompt_ms: float = options.prompt_ms()
    only: str = options.option("--only", default="", help="Attacks whose names have this text.")


@dataclass(frozen=True)
class Outcome:
    """What an attack did."""

    attack: Attack
    gaps: Gaps
    told: list[str]  # error codes that the attacker got
    problems: list[str]  # of the server
    times: float = 1.0  # the median gap by that of an undisturbed bystander

    @property
    def word(self) -> str:
        """`contained`, or what is worse."""
        if self.problems or self.gaps.wrong or self.gaps.worst_ms > BROKEN_MS:
            return "BROKEN"
        return "slowed" if self.gaps.worst_ms > SLOWED_MS else "contained"


def undergo(attack: Attack, where: Place, bystander: Bystander, seconds: float) -> Outcome:
    """One attack, from its first request until the bystander goes on after its end."""
    start = time.monotonic()
    try:
        with where.client(MALLORY) as client:
            told = acts(attack, client, where, seconds)
    except ClientError as error:
        told = [str(error)[:60]]
    end = time.monotonic()
    clean_up(where, MALLORY)
    problems = where.problems()
    if not problems:
        bystander.wait(3, 60.0)
    return Outcome(attack, bystander.since(start, end), told, problems)


def clean_up(where: Place, user: str) -> None:
    """Ends what an attacker has left: the next attack is measured by itself."""
    with where.client(user) as client:
        while alive := client.instances():
            for one in alive:
                with suppress(ClientError):  # it has ended meanwhile
                    client.kill(one["id"])
        for name in {program["name"] for program in client.programs()}:
            client.remove_program(name, force=True)


def by_cause(outcomes: list[Outcome]) -> Report:
    """What docs/safety.md shows."""
    report = Report(
        "By cause",
        ["cause", "attacks", "contained", "median gap, ×", "to", "worst gap, ms", "of"],
    )
    for cause in dict.fromkeys(outcome.attack.cause for outcome in outcomes):
        its = [outcome for outcome in outcomes if outcome.attack.cause == cause]
        times = [outcome.times for outcome in its]
        worst = max(its, key=lambda outcome: outcome.gaps.worst_ms)
        contained = sum(outcome.word == "contained" for outcome in its)
        report.rows.append(
            [
                *(cause, len(its), contained, min(times), max(times)),
                *(worst.gaps.worst_ms, worst.attack.name),
            ]
        )
    return report


def table(settings: Settings, progress: Progress) -> list[Report]:
    """Runs the attacks one after the other on one server, those over HTTP on another one."""
    chosen = [attack for attack in ATTACKS if settings.only in attack.name]
    progress.expect(len(chosen))
    report = Report(
        "Attacks by one user, and what another one notices who generates text",
        ["attack", "cause", "outcome", "median gap, ×", "worst gap, ms", "the attacker is told"],
    )
    outcomes = []
    for over_http in (False, True):
        those = [attack for attack in chosen if (attack.cause == HTTP) is over_http]
        if those:
            outcomes += _one_after_the_other(those, settings, report, progress)
    report.rows = [
        [
            *(outcome.attack.name, outcome.attack.cause, outcome.word, outcome.times),
            outcome.gaps.worst_ms,
            ", ".join([*outcome.problems, *outcome.gaps.wrong, *outcome.told])[:220],
        ]
        for outcome in outcomes
    ]
    report.goals += [
        Goal("attacks not contained", float(sum(o.word != "contained" for o in outcomes)), 0),
        Goal("worst gap of all, ms", max(o.gaps.worst_ms for o in outcomes), MOST_MS),
        Goal("largest median gap, times undisturbed", max(o.times for o in outcomes), MOST_TIMES),
    ]
    return [report, by_cause(outcomes)]


def _one_after_the_other(
    attacks: list[Attack], settings: Settings, report: Report, progress: Progress
) -> list[Outcome]:
    """All on one server."""
    outcomes = []
    scheduler = {"prompt_ms": settings.prompt_ms}
    with (
        place(http=attacks[0].cause == HTTP, scheduler=scheduler) as where,
        Bystander(where.url, where.keys[VICTIM]) as bystander,
    ):
        start = time.monotonic()
        time.sleep(max(settings.seconds, 3.0))
        alone = bystander.since(start, time.monotonic())
        report.notes.append(
            f"Undisturbed at {where.url.partition(':')[0]}: {alone.median_ms:.1f} ms in the"
            f" median, {alone.worst_ms:.0f} ms at most, launches of the next instance included."
        )
        for attack in attacks:
            outcome = undergo(attack, where, bystander, settings.seconds)
            outcome = replace(outcome, times=outcome.gaps.median_ms / alone.median_ms)
            outcomes.append(outcome)
            progress(f"{attack.name}: {outcome.word}, {outcome.gaps.worst_ms:.0f} ms")
            time.sleep(REST_SECONDS)
    return outcomes


BENCHMARK = Benchmark(Settings, table, always_checks=True)
