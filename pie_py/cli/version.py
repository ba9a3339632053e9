"""`pie-py version`: what is installed."""

from __future__ import annotations

import click

from pie_py import __version__
from pie_py.wire.contract import contract_version


def version_text() -> str:
    """The versions that decide what works with what."""
    return f"pie-py {__version__}, contract pie:inferlet {contract_version()}"


@click.command("version")
def command() -> None:
    """Print the versions of pie_py and of its contract."""
    click.echo(version_text())
