"""Commands for authors: `pie-py new` and `test`, and the library's inferlets, to copy."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import click

from pie_py.build.library import library
from pie_py.cli.arguments import PassingCommand, SuggestingGroup
from pie_py.cli.connect import fail, json_option
from pie_py.cli.console import run_to_end, say, table
from pie_py.config.processes import python_command
from pie_py.config.shipped_files import shipped_folder

TEMPLATES = Path(__file__).parent / "templates"
COLUMNS = {"name": "NAME", "entries": "ENTRIES", "description": "WHAT IT DOES"}


@click.command("new")
@click.argument("name", type=click.Path(path_type=Path))
@click.option(
    "--lang",
    type=click.Choice(["python", "rust", "js", "ts"]),
    default="python",
    show_default=True,
    help="Language of the inferlet.",
)
def new(name: Path, lang: str) -> None:
    """Make a folder NAME with an inferlet, tests of it that pass, and what editors read."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name.name):
        raise click.BadParameter(
            f"{name.name!r} is no name of a program: letters, digits and _", param_hint="NAME"
        )
    if name.exists():
        fail(f"{name} exists already: take another name, or remove it")
    sdk = shipped_folder("js" if lang == "ts" else lang) if lang != "python" else TEMPLATES
    folders = ("all", "node", lang) if lang in ("js", "ts") else ("all", lang)
    for template in (TEMPLATES / folder for folder in folders):
        for file in sorted(template.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                path = str(file.relative_to(template)).replace("dot-", ".")
                target = name / path.replace("NAME", name.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                text = file.read_text(encoding="utf-8").replace("NAME", name.name)
                with target.open("a", encoding="utf-8") as made:  # a README has parts
                    made.write(text.replace("SDK", str(sdk)))
    click.echo(name)
    say(f"next: cd {name} && pie-py test && pie-py run . --prompt 'Once upon a time'")


@click.command("test", cls=PassingCommand)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def test(args: tuple[str, ...]) -> None:
    """Run the tests of this folder with pytest; ARGS are pytest's.

    Tests take the fixture `pie`, a server whose model says what the test tells it, or `pie_tiny`,
    with the embedded model.
    """
    sys.exit(run_to_end(python_command("-m", "pytest", *args)))


@click.group("inferlets", cls=SuggestingGroup, invoke_without_command=True)
@json_option
@click.pass_context
def inferlets(context: click.Context, as_json: bool) -> None:
    """List the library's inferlets; `pie-py run NAME` runs one.

    `pie-py run NAME -- --help` tells its options, and its README what to expect.
    """
    if context.invoked_subcommand is None:
        table([dict(row) for row in library()], COLUMNS, as_json)


@inferlets.command("copy")
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
