"""`pie-py top`: how the server is doing, again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pie_py.cli.connect import json_option, with_client
from pie_py.config.printable import printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from pie_py.client.sync import Client

MOST_ROWS = 30
WIDEST_ID = 36  # characters that a line of 80 has for it


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
    from rich.console import Console
    from rich.live import Live

    console = Console()
    screens = _screens(client, interval)
    if once:
        console.print(next(screens))
        return
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        for screen in screens:
            live.update(screen, refresh=True)


def _screens(client: Client, interval: float) -> Iterator[Group]:
    """A screen after each interval, with the rates in it."""
    before, at = client.stats(), time.monotonic()
    while True:
        time.sleep(interval)
        stats, now = client.stats(), time.monotonic()
        yield _screen(client, before, stats, now - at)
        before, at = stats, now


def _screen(client: Client, before: dict[str, Any], stats: dict[str, Any], seconds: float) -> Group:
    from rich.console import Group

    info = client.server_info()
    head = (
        f"pie_py {printable(info['version'])}, up {info['uptime']:.0f} s: {info['instances']} of at"
        f" most {info['max_instances']} instances, {info['launched']} launched"
    )
    return Group(head, _models(before, stats, seconds), _instances(client.instances()))


def _models(before: dict[str, Any], stats: dict[str, Any], seconds: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("model", "pages in use", "cached", "swapped", "queued", "tokens/s", "worker busy")
    for name, now in stats.items():
        old = before.get(name, now)
        tokens = now["generated_tokens"] - old["generated_tokens"]
        busy = (now["worker_ns"] - old["worker_ns"]) / 1e9
        table.add_row(
            Text(printable(name)),
            f"{now['kv_pages'] - now['kv_pages_free']} of {now['kv_pages']}",
            str(now["prefix_pages"]),
            str(now["host_pages"] - now["host_pages_free"]),
            str(now["queued"]),
            f"{tokens / seconds:.0f}",
            f"{min(1.0, busy / seconds):.0%}",  # of a batch longer than the interval
        )
    return table


def _instances(instances: list[dict[str, Any]]) -> Table:
    from rich.table import Column, Table
    from rich.text import Text

    def plain(text: str) -> Text:
        return Text(printable(text))

    shown = sorted(instances, key=lambda one: -one["pages"])[:MOST_ROWS]
    # `pie-py kill` wants the whole of an id, which begins with the program's name; a very long one
    # is in several lines.
    longest = max((len(each["id"]) for each in shown), default=0)
    fits = longest <= WIDEST_ID
    whole = Column("instance", no_wrap=fits, overflow="fold", min_width=longest if fits else None)
    table = Table(whole, "user", "waits for", "tokens", "pages", "CPU ms", "age s")
    now = time.time_ns()
    for each in shown:
        table.add_row(
            *(plain(each[key]) for key in ("id", "user")),
            plain(", ".join(each["waits"])),
            str(each["generated_tokens"]),
            str(each["pages"]),
            f"{each['cpu_ms']:.1f}",
            f"{(now - each['created_ns']) / 1e9:.0f}",
        )
    if len(instances) > MOST_ROWS:
        table.add_row(f"… {len(instances) - MOST_ROWS} more", *[""] * 6)
    return table
