"""From played episodes to figures: what share is right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from examples.pie_tiny.call_episodes import Asynchronous, Calls, Synchronous
from examples.pie_tiny.episodes import Plain, React


@dataclass(frozen=True)
class Figure:
    """One number of the evaluation.

    Attributes:
        section: what it is about.
        name: what was measured.
        value: in percent, or points; None if there was nothing to measure.
        count: of how many samples, calls or decisions.
    """

    section: str
    name: str
    value: float | None
    count: int


def share(section: str, name: str, outcomes: Iterable[bool]) -> Figure:
    """How many of the outcomes are true, in percent."""
    listed = list(outcomes)
    return ratio(section, name, sum(listed), len(listed))


def ratio(section: str, name: str, part: int, whole: int) -> Figure:
    """A part of a whole, in percent."""
    return Figure(section, name, 100 * part / whole if whole else None, whole)


def calls_figures(section: str, episodes: Sequence[Calls]) -> list[Figure]:
    """Figures of the episodes of one call form."""
    ledgers = [episode.ledger for episode in episodes]
    expected = sum(len(ledger.expected) for ledger in ledgers)
    figures = [
        share(section, "valid CML", (e.valid for e in episodes)),
        share(section, "all calls right", (e.all_right for e in episodes)),
        share(
            section, "closing words right too", (e.all_right and e.closed_right for e in episodes)
        ),
        ratio(section, "calls right", sum(ledger.right for ledger in ledgers), expected),
    ]
    synchronous = [episode for episode in episodes if isinstance(episode, Synchronous)]
    if synchronous:
        figures.append(
            share(section, "calls per turn as asked", (e.turns_right for e in synchronous))
        )
    timed = [episode for episode in episodes if isinstance(episode, Asynchronous)]
    if timed:
        decisions = sum(ledger.decisions for ledger in ledgers)
        longest = sum(ledger.longest for ledger in ledgers)
        traps = sum(episode.traps for episode in timed)
        figures += [
            ratio(section, "longest first", longest, decisions),
            ratio(section, "traps unneeded", sum(e.unneeded_traps for e in timed), traps),
            share(section, "trap missing", (e.trap_missing for e in timed)),
        ]
    return figures


def problems(episodes: Sequence[Calls]) -> dict[str, int]:
    """How often each thing was the first that went wrong in an episode."""
    first: Counter[str] = Counter()
    for episode in episodes:
        if episode.violation:
            first[str(episode.violation)] += 1
        elif episode.ledger.problems:
            first[str(episode.ledger.problems[0])] += 1
    return dict(first.most_common())


def points(sequential: Figure, asynchronous: Figure) -> Figure:
    """By how many points the asynchronous form is worse than the sequential one."""
    both = sequential.value is not None and asynchronous.value is not None
    value = sequential.value - asynchronous.value if both else None  # type: ignore[operator]
    count = min(sequential.count, asynchronous.count)
    return Figure("calls", "points of asynchronous under sequential", value, count)


def plain_figures(played: Mapping[str, Sequence[Plain]]) -> list[Figure]:
    """Figures of the sets without calls, by their names."""
    figures = []
    pairs = [name for name in played if "two 2-digit" in name]
    for name in pairs:
        figures.append(share("arithmetic", name, map(answer_right, played[name])))
    together = [episode for name in pairs for episode in played[name]]
    figures.append(share("arithmetic", "two 2-digit numbers", map(answer_right, together)))
    if others := played.get("arithmetic, other sizes"):
        figures.append(share("arithmetic", "other sizes", map(answer_right, others)))
    if objects := played.get("json"):
        parsed = [(parse_json(episode.text), episode.sample.answer["value"]) for episode in objects]
        figures.append(share("json", "valid", (found is not None for found, _ in parsed)))
        right = (same_json(found, value) for found, value in parsed)
        figures.append(share("json", "valid and right", right))
    if words := played.get("strings"):
        figures.append(share("strings", "right", map(answer_right, words)))
    if asked := played.get("qa"):
        figures.append(share("qa", "right", (e.text == e.sample.answer["value"] for e in asked)))
    if traces := played.get("react"):
        figures.append(share("react", "answer right", map(answer_right, traces)))
        figures.append(
            share(
                "react",
                "actions right",
                (e.actions == e.sample.answer["actions"] for e in traces if isinstance(e, React)),
            )
        )
    return figures


def answer_right(episode: Plain) -> bool:
    """True if the last line is `Answer:` with the right value."""
    return (
        episode.whole
        and episode.text.split("\n")[-1] == f"Answer: {episode.sample.answer['value']}"
    )


def parse_json(text: str) -> object:
    """The value of a JSON text, None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def same_json(found: object, value: object) -> bool:
    """True if two values are equal; the order of an object's fields does not count, types do."""
    return json.dumps(found, sort_keys=True) == json.dumps(value, sort_keys=True)
