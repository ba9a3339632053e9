"""`pie-py inferlets`: the library, and copies of its programs to change."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from pie_py.build.library import library
from pie_py.cli.connect import json_option
from pie_py.cli.console import table
from pie_py.config.shipped_files import shipped_folder

COLUMNS = {"name": "NAME", "entries": "ENTRIES", "description": "WHAT IT DOES"}


@click.group("inferlets", invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the library's inferlets; `pie-py run NAME` runs one.

    `pie-py run NAME -- --help` tells its options, and its README what to expect.
    """
    if context.invoked_subcommand is None:
        table([dict(row) for row in library()], COLUMNS, as_json)


@command.command("copy")
@click.argument("name")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
def copy(name: str, folder: Path | None) -> None:
    """Copy the source of inferlet NAME to FOLDER, ./NAME by default, to change it.

    `pie-py run FOLDER` runs the copy.
    """
    source = shipped_folder("inferlets") / name
    if name not in (row["name"] for row in library()):
        raise click.BadParameter(
            f"no inferlet of the library is called {name!r}; `pie-py inferlets` lists them",
            param_hint="NAME",
        )
    target = folder or Path(name)
    if target.exists():
        raise click.BadParameter(f"{target} exists: name another folder", param_hint="FOLDER")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("target", "__pycache__"))
    click.echo(f"copied to {target}; run it with: pie-py run {target}")
