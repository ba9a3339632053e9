"""`table`: every attack against a server with default limits, beside a user who generates text."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.attacks.bystander import Bystander, Gaps
from benchmarks.attacks.catalogue import ATTACKS, Attack, acts
from benchmarks.attacks.place import EVE, MALLORY, VICTIM, Place, place
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
    prompt_ms: float = options.real(
        "--prompt-ms", 50.0, "The server's scheduler.prompt_ms; 0 for no bound."
    )
    only: str = options.option("--only", default="", help="Attacks whose names have this text.")


@dataclass(frozen=True)
class Outcome:
    """What an attack did."""

    attack: Attack
    gaps: Gaps
    told: list[str]  # error codes that the attacker got
    problems: list[str]  # of the server

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
    for user in (MALLORY, EVE):
        clean_up(where, user)
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


def by_cause(outcomes: list[Outcome], undisturbed_ms: float) -> Report:
    """What docs/safety.md shows."""
    report = Report(
        "By cause",
        ["cause", "attacks", "contained", "median gap, ×", "to", "worst gap, ms", "of"],
    )
    for cause in dict.fromkeys(outcome.attack.cause for outcome in outcomes):
        its = [outcome for outcome in outcomes if outcome.attack.cause == cause]
        times = [outcome.gaps.median_ms / undisturbed_ms for outcome in its]
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
    """Runs the attacks one after the other on one server."""
    chosen = [attack for attack in ATTACKS if settings.only in attack.name]
    progress.expect(len(chosen))
    report = Report(
        "Attacks by one user, and what another one notices who generates text",
        ["attack", "cause", "outcome", "median gap, ×", "worst gap, ms", "the attacker is told"],
    )
    scheduler = {"prompt_ms": settings.prompt_ms}
    with (
        place(scheduler=scheduler) as where,
        Bystander(where.server.endpoint, where.keys[VICTIM]) as bystander,
    ):
        start = time.monotonic()
        time.sleep(max(settings.seconds, 3.0))
        alone = bystander.since(start, time.monotonic())
        report.notes.append(
            f"Undisturbed: {alone.median_ms:.1f} ms in the median, {alone.worst_ms:.0f} ms at most,"
            " launches of the next instance included."
        )
        outcomes = []
        for attack in chosen:
            outcome = undergo(attack, where, bystander, settings.seconds)
            outcomes.append(outcome)
            gaps = outcome.gaps
            told = ", ".join([*outcome.problems, *gaps.wrong, *outcome.told])[:220]
            times = gaps.median_ms / alone.median_ms
            report.rows.append(
                [attack.name, attack.cause, outcome.word, times, gaps.worst_ms, told]
            )
            progress(f"{attack.name}: {outcome.word}, {gaps.worst_ms:.0f} ms")
            time.sleep(REST_SECONDS)
    report.goals += [
        Goal("attacks not contained", float(sum(o.word != "contained" for o in outcomes)), 0),
        Goal("worst gap of all, ms", max(o.gaps.worst_ms for o in outcomes), MOST_MS),
        Goal(
            "largest median gap, times undisturbed",
            max(o.gaps.median_ms for o in outcomes) / alone.median_ms,
            MOST_TIMES,
        ),
    ]
    return [report, by_cause(outcomes, alone.median_ms)]


BENCHMARK = Benchmark(Settings, table, always_checks=True)
