"""`speculation`: generations whose runs guess their next tokens, beside the same ones without.

Both take turns at one server. Where a text repeats its context, several tokens come of a step; free
prose shows what guessing costs where it does not help. The tokens are the same but for the rounding
of forwards of other shapes.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig

GUEST = Path(__file__).parent / "guest.py"
WHERE_TEXT_REPEATS, ANYWHERE = 1.5, 0.95  # times the tokens per second without
LONGEST = 2048  # tokens of a text

CODE = '''def total_price(items, tax_rate):
    """Returns the price of all items, with tax."""
    total = 0.0
    for item in items:
        if item.quantity < 1:
            raise ValueError(f"{item.name} has no quantity")
        total += item.price * item.quantity
    if total > 100.0:
        total -= total * 0.05
    return total * (1.0 + tax_rate)


def print_receipt(items, tax_rate):
    """Prints a line for each item, and the total."""
    for item in items:
        print(f"{item.name}: {item.quantity} x {item.price:.2f}")
    print(f"Total: {total_price(items, tax_rate):.2f}")
'''
ARTICLE = (
    "The town council voted on Tuesday to close the old bridge over the river Aller to all motor"
    ' traffic from the first of May. "The bridge was built for horses and carts," said the'
    ' mayor, Ingrid Moser, "and it has carried lorries for sixty years. We cannot wait until it'
    ' falls." Engineers found cracks in two of the five stone arches last autumn. Repairs will'
    " take eighteen months and cost four million euros, half of which the state will pay. Shop"
    ' owners on the west bank fear for their trade. "Nine of ten customers come by car," said'
    ' Karl Brandt, who sells bicycles. "Perhaps now they will buy a bicycle." Pedestrians and'
    " cyclists may use the bridge throughout the works."
)


@dataclass(frozen=True)
class Case:
    """A prompt."""

    prompt: str
    repeats: bool
    temperature: float = 0.0


CASES = {
    "code edit": Case(
        f"{CODE}\n\n# The same code once more, with `tax_rate` renamed to `vat`:\n\n"
        "def total_price(items, vat):\n"
        '    """Returns the price of all items, with tax."""\n',
        True,
    ),
    "quotes": Case(
        f"Article:\n{ARTICLE}\n\nThe most important sentences of the article, word for word:\n"
        "- The town council",
        True,
    ),
    "prose": Case("The old lighthouse keeper opened the door and", False),
    "prose, temperature 1": Case("The old lighthouse keeper opened the door and", False, 1.0),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Runs that guess their next tokens, beside runs that do not."""

    model: ModelConfig = options.model("smollm2")
    tokens: int = options.tokens(192)
    guesses: int = options.count("--guesses", 8, "Tokens that are guessed at a time, at most.")
    rounds: int = options.rounds(3)


def compare(settings: Settings, progress: Progress) -> Report:
    """Measures each text with guesses and without, in turns."""
    progress.expect(len(CASES) * (settings.rounds + 1))
    with bench_server(with_room(settings.model, 2, LONGEST)) as server:
        found = anyio.run(_all, server.endpoint, settings, progress)
    report = Report(
        "Speculation: tokens per second of one run",
        ["text", "without", "with", "gain", "same tokens"],
        notes=[
            f"Medians of {settings.rounds} rounds in turns; {settings.tokens} new tokens, up to"
            f" {settings.guesses} guessed at a time."
        ],
    )
    for name, (plain, guessing) in found.items():
        gains = [b["seconds"] / a["seconds"] for a, b in zip(guessing, plain, strict=True)]
        gain = statistics.median(gains)
        rates = [
            settings.tokens / statistics.median(r["seconds"] for r in side)
            for side in (plain, guessing)
        ]
        same = _alike(plain[0]["tokens"], guessing[0]["tokens"])
        report.rows.append([name, *rates, gain, same])
        goal = WHERE_TEXT_REPEATS if CASES[name].repeats else ANYWHERE
        report.goals.append(Goal(f"gain with {name}", gain, goal, at_most=False))
    return report


async def _all(
    endpoint: str, settings: Settings, progress: Progress
) -> dict[str, tuple[list[Any], list[Any]]]:
    """Each case's runs without and with guesses, round by round."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    async with Client(endpoint) as client:
        program = await client.upload(GUEST.read_bytes(), name="speculation")

        async def run(case: Case, guesses: int) -> Any:
            job = {
                "prompt": case.prompt,
                "tokens": settings.tokens,
                "guesses": guesses,
                "temperature": case.temperature,
            }
            return json.loads(await (await client.launch(program, [json.dumps(job)])).result())

        for name, case in CASES.items():
            found[name] = [], []
            for number in range(settings.rounds + 1):  # the first warms up
                both = [await run(case, guesses) for guesses in (0, settings.guesses)]
                if number:
                    for side, figure in zip(found[name], both, strict=True):
                        side.append(figure)
                progress(f"{name}, round {number}")
    return found


def _alike(one: list[int], other: list[int]) -> int:
    """Tokens before the first that differ."""
    pairs = zip(one, other, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(one))


BENCHMARK = Benchmark(Settings, compare)
