"""`pie-py top`: how the server is doing, again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pie_py.cli.connect import json_option, with_client
from pie_py.cli.console import columns, lines_of, print_text

if TYPE_CHECKING:
    from pie_py.client.sync import Client

MOST_ROWS = 30
CLEAR = "\x1b[H\x1b[2J"
MODELS = columns(
    "name=MODEL used=PAGES_IN_USE prefix_pages=CACHED swapped queued rate=TOKENS/S busy=WORKER_BUSY"
)
INSTANCES = columns(
    "id=INSTANCE user waits=WAITS_FOR generated_tokens=TOKENS pages cpu_ms created_ns=LAUNCHED"
)


@click.command("top")
@click.option("--interval", type=click.FloatRange(0.2), default=1.0, show_default=True)
@click.option("--once", is_flag=True, help="Print it once, after one interval.")
@json_option
@with_client
def command(client: Client, interval: float, once: bool, as_json: bool) -> None:
    """Show models, memory and instances, each second, until Ctrl-C. JSON is printed once."""
    if as_json:
        found = {"models": client.stats(), "instances": client.instances()}
        click.echo(json.dumps(found, indent=1))
        return
    before, at = client.stats(), time.monotonic()
    while True:
        time.sleep(interval)
        stats, now = client.stats(), time.monotonic()
        lines = [*_screen(client, before, stats, now - at)]
        if not once and sys.stdout.isatty():
            click.echo(CLEAR, nl=False)
        for line in lines:
            print_text(line)
        if once:
            return
        before, at = stats, now


def _screen(
    client: Client, before: dict[str, Any], stats: dict[str, Any], seconds: float
) -> Iterator[str]:
    info, instances = client.server_info(), client.instances()
    yield (
        f"pie_py {info['version']}, up {info['uptime']:.0f} s: {info['instances']} of at most"
        f" {info['max_instances']} instances, {info['launched']} launched"
    )
    yield ""
    models = [_model(name, before.get(name, now), now, seconds) for name, now in stats.items()]
    yield from lines_of(models, MODELS)
    yield ""
    shown = sorted(instances, key=lambda one: -one["pages"])[:MOST_ROWS]
    yield from lines_of(shown, INSTANCES)
    if len(instances) > MOST_ROWS:
        yield f"… {len(instances) - MOST_ROWS} more"


def _model(name: str, old: dict[str, Any], now: dict[str, Any], seconds: float) -> dict[str, Any]:
    tokens = now["generated_tokens"] - old["generated_tokens"]
    busy = (now["worker_ns"] - old["worker_ns"]) / 1e9
    return {
        **now,
        "name": name,
        "used": f"{now['kv_pages'] - now['kv_pages_free']} of {now['kv_pages']}",
        "swapped": now["host_pages"] - now["host_pages_free"],
        "rate": f"{tokens / seconds:.0f}",
        "busy": f"{min(1.0, busy / seconds):.0%}",  # of a batch longer than the interval
    }
