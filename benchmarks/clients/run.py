"""`clients`: clients of others against the gateway, case by case; none may be wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients.clients import NotRun, Outcome, names, outcomes, prepared
from benchmarks.http.gateway import gateway_server
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import with_room
from pie_py.config.model import ModelConfig
from pie_py.config.server import ServerConfig

COLUMNS = ["client", "model", "tried", "right", "refused", "wrong", "not judged"]
ROOM = 16, 4096  # requests at once, and tokens of each
CACHE = ServerConfig().cache_folder / "clients"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Runs the scripts of clients, each in an environment of its own, which is made once."""

    client: tuple[str, ...] = options.some_of(
        "--client", tuple(names()), (), "One of the clients. Repeatable; by default all."
    )
    models: tuple[ModelConfig, ...] = options.models("pie-tiny")
    url: str = options.option(
        "--url", default="", help="Of a gateway that runs, instead of one that is started."
    )
    short: bool = options.option("--short", is_flag=True, help="Leave out what takes long.")
    cache: str = options.option(
        "--cache", default=str(CACHE), metavar="FOLDER", help="Where the environments are kept."
    )


def clients(settings: Settings, progress: Progress) -> Report:
    """Tries the clients one after the other, with each model."""
    chosen = settings.client or tuple(names())
    progress.expect(len(chosen) * len(settings.models))
    report = Report("Clients of others: cases tried", COLUMNS)
    for model in settings.models:
        with _served(settings.url, model) as (url, name):
            for client in chosen:
                row = _row(settings, client, url, name, report.notes)
                report.rows.append([client, Path(model.name or model.source).stem, *row])
                progress(f"{client}: {row[-2]} wrong of {row[0]}")
    wrong = sum(row[5] or 0 for row in report.rows)
    missing = sum(row[2] is None for row in report.rows)
    report.goals += [Goal("wrong", float(wrong), 0), Goal("clients not run", float(missing), 0)]
    return report


def _row(
    settings: Settings, client: str, url: str, model: str, notes: list[str]
) -> list[int | None]:
    """Cases tried, right, refused, wrong and not judged; notes tell of the last three."""
    try:
        found = list(
            outcomes(prepared(client, Path(settings.cache)), url, model, short=settings.short)
        )
    except NotRun as error:
        notes.append(f"{client} not run: {error}")
        return [None] * 5
    return _counted(client, found, notes)


def _counted(client: str, found: list[Outcome], notes: list[str]) -> list[int | None]:
    words = {"unjudged": "not judged"}
    for one in found:
        note = f"{client}: {one.case}: {words.get(one.outcome, one.outcome)}: {one.detail}"
        if one.outcome != "right" and note not in notes:
            notes.append(note)
    count = Counter(one.outcome for one in found)
    judged = [count[word] for word in ("right", "refused", "wrong")]
    return [sum(judged), *judged, count["unjudged"]]


@contextmanager
def _served(url: str, model: ModelConfig) -> Iterator[tuple[str, str]]:
    """The address of a gateway, and the model's name there."""
    if url:
        yield url, model.name or model.source
        return
    with gateway_server(with_room(model, *ROOM)) as served:
        yield served.url, "bench"


BENCHMARK = Benchmark(Settings, clients, always_checks=True)
