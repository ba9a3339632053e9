"""Every attack against a server with default limits, beside a user who generates text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from attacks.bystander import Bystander, Gaps
from attacks.catalogue import ATTACKS, HTTP, Attack, acts
from attacks.place import MALLORY, VICTIM, Place, place

from pie_py.client.errors import ClientError

REST_SECONDS = 1.0  # between two attacks
SLOWED_MS, BROKEN_MS = 1000.0, 5000.0


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


def all_attacks(seconds: float) -> Iterator[Outcome]:
    """The attacks one after the other on one server, those over HTTP on another one."""
    for over_http in (False, True):
        with place(http=over_http) as where, Bystander(where.url, where.keys[VICTIM]) as bystander:
            start = time.monotonic()
            time.sleep(max(seconds, 3.0))
            alone = bystander.since(start, time.monotonic()).median_ms
            for attack in ATTACKS:
                if (attack.cause == HTTP) is over_http:
                    outcome = undergo(attack, where, bystander, seconds)
                    yield replace(outcome, times=outcome.gaps.median_ms / alone)
                    time.sleep(REST_SECONDS)


def shown(outcomes: Sequence[Outcome]) -> str:
    """A line for each, and below it a line for each cause; docs/safety.md sums them up."""
    lines = [
        f"{one.attack.name:42} {one.word:9} x{one.times:5.1f} {one.gaps.worst_ms:6.0f} ms"
        f"  {', '.join([*one.problems, *one.gaps.wrong, *one.told])[:120]}"
        for one in outcomes
    ]
    for cause in dict.fromkeys(one.attack.cause for one in outcomes):
        its = [one for one in outcomes if one.attack.cause == cause]
        times = [one.times for one in its]
        worst = max(its, key=lambda one: one.gaps.worst_ms)
        lines.append(
            f"| {cause} | {len(its)} | {min(times):.1f} to {max(times):.1f}"
            f" | {worst.gaps.worst_ms:.0f} | {worst.attack.name} |"
        )
    return "\n".join(lines)
