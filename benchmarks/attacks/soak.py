"""`soak`: attacks and ordinary work of several users, mixed at random; then what is left of it."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from benchmarks.attacks.bystander import Bystander
from benchmarks.attacks.catalogue import ATTACKS, HTTP, acts
from benchmarks.attacks.place import EVE, MALLORY, VICTIM, Place, place
from benchmarks.attacks.table import clean_up
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.client.errors import ClientError

MOST_GROWN = 1.5  # of the control process's memory, after a rest
POOLS = ("embeds", "samplers", "host_pages")


class _Attacker(threading.Thread):
    """One user, one attack after the other until the end."""

    def __init__(self, where: Place, user: str, seed: int, end: float) -> None:
        super().__init__(daemon=True)
        self._where, self._user, self._end = where, user, end
        self._chance = random.Random(seed)
        self.attacks = 0

    def run(self) -> None:
        while time.monotonic() < self._end:
            attack = self._chance.choice([each for each in ATTACKS if each.cause != HTTP])
            try:
                with self._where.client(self._user) as client:
                    acts(attack, client, self._where, self._chance.uniform(1, 4))
                clean_up(self._where, self._user)
            except ClientError:
                pass  # the server is busy with the other one's
            self.attacks += 1


def _memory_mb(where: Place) -> float:
    return float(where.control.memory_info().rss) / 1e6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Attacks of two users for some minutes, beside another who generates text; then a rest."""

    seconds: float = options.real("--seconds", 600.0)
    rest: float = options.real("--rest", 60.0, "Seconds without load, before the end.")
    seed: int = options.count("--seed", 1, "Other attacks for each.")


def soak(settings: Settings, progress: Progress) -> Report:
    """Attacks, rests, and compares the server with what it was before."""
    progress.expect(int(settings.seconds + settings.rest))
    # Spare instances would come after the first look, and be taken for what is left behind.
    with (
        place(spare_instances=0) as where,
        Bystander(where.server.endpoint, where.keys[VICTIM]) as bystander,
    ):
        files, before = where.control.num_fds(), _memory_mb(where)
        start = time.monotonic()
        end = start + settings.seconds
        attackers = [
            _Attacker(where, user, settings.seed * 2 + number, end)
            for number, user in enumerate((MALLORY, EVE))
        ]
        for attacker in attackers:
            attacker.start()
        highest = before
        while any(attacker.is_alive() for attacker in attackers) and not where.ended:
            time.sleep(1.0)
            highest = max(highest, _memory_mb(where))
            progress(f"{highest:.0f} MB at most")
        problems = where.problems()
        gaps = bystander.since(start, time.monotonic())
        time.sleep(settings.rest)
        after = _memory_mb(where)
        more_files = where.control.num_fds() - files
        with where.client(MALLORY) as client:
            stats = client.stats()
            left = len(client.instances())
    report = Report(
        f"{sum(a.attacks for a in attackers)} attacks in {settings.seconds:.0f} s",
        ["MB before", "at most", "after a rest", "more files", "median gap, ms", "worst gap, ms"],
        [[before, highest, after, more_files, gaps.median_ms, gaps.worst_ms]],
        notes=[*problems, *dict.fromkeys(gaps.wrong)],
    )
    held = [
        f"{name}: {pool}"
        for name, pools in stats.items()
        for pool in POOLS
        if pool in pools and pools[f"{pool}_free"] < pools[pool] // 2  # the bystander has some
    ]
    report.notes += held
    report.goals += [
        Goal("memory after a rest, times that before", after / before, MOST_GROWN),
        Goal("problems in the log, wrong texts", float(len(problems) + len(gaps.wrong)), 0),
        Goal("instances and pools that are left", float(left + len(held)), 0),
    ]
    return report


BENCHMARK = Benchmark(Settings, soak, always_checks=True)
