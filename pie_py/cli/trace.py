"""`pie-py trace`: what an instance has done over time, for Perfetto and Chrome."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

import click

from pie_py.cli.connect import with_client
from pie_py.cli.console import LOOK_SECONDS
from pie_py.client import sync

TRACKS = {"wait": 1, "batch": 2}


@click.command("trace")
@click.argument("instance")
@click.option(
    *("--output", "-o"),
    type=click.File("w", lazy=True),
    default="-",
    help="File to write; standard output by default.",
)
@click.option("--follow", is_flag=True, help="Until the instance has ended.")
@with_client
def command(client: sync.Client, instance: str, output: TextIO, follow: bool) -> None:
    """Write an instance's waits and batches, as JSON that ui.perfetto.dev opens.

    The server keeps the newest 512 of them, and forgets an ended instance some time after its end;
    with --follow none is missed.
    """
    spans: list[dict[str, Any]] = []
    found = client.trace(instance)
    spans += found["spans"]
    while follow and found["ended_ns"] is None:
        time.sleep(LOOK_SECONDS)
        found = client.trace(instance, found["next"])
        spans += found["spans"]
    if found["open"] is not None:
        spans.append(found["open"])
    events = [*_life(instance, found), *_events(spans)]
    json.dump({"displayTimeUnit": "ms", "traceEvents": events}, output, separators=(",", ":"))
    output.write("\n")


def _life(instance: str, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The names of the tracks, and the instance from its launch to its end."""
    yield _event("M", "process_name", 0, args={"name": f"{found['program']}: {instance}"})
    for name, number in TRACKS.items():
        yield _event("M", "thread_name", number, args={"name": name})
    yield _event("i", "launched", 0, ts=found["begun_ns"] / 1e3, s="p")
    if found["ended_ns"] is not None:
        yield _event("i", "ended", 0, ts=found["ended_ns"] / 1e3, s="p")


def _events(spans: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Waits, which follow each other, and batches, which overlap."""
    for number, span in enumerate(spans):
        begin, end = span["begin_ns"] / 1e3, span["end_ns"] / 1e3
        track = TRACKS[span["track"]]
        if span["track"] == "wait":
            yield _event("X", span["name"], track, ts=begin, dur=end - begin)
            continue
        facts = {"size": span["size"], "device_ms": span["device_ns"] / 1e6}
        yield _event("b", span["name"], track, ts=begin, cat="batch", id=number, args=facts)
        yield _event("e", span["name"], track, ts=end, cat="batch", id=number)


def _event(phase: str, name: str, track: int, **more: Any) -> dict[str, Any]:
    """An event of Chrome's trace format, whose times are microseconds."""
    return {"ph": phase, "name": name, "pid": 1, "tid": track, **more}
