"""`pie-py build`: a component from Python, Rust or JavaScript."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pie_py.cli.connect import EXIT_FAILED
from pie_py.cli.console import progress, say
from pie_py.cli.target import BadTarget, find_target


@click.command("build")
@click.argument("target", metavar="PATH")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The component's file; NAME.wasm here by default.",
)
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Python package to put in. Repeatable.",
)
@click.option("--entry", help="Which of a library inferlet's programs to build.")
def command(target: str, output: Path | None, packages: tuple[str, ...], entry: str | None) -> None:
    """Build a component, and print its file: PATH is Python, JavaScript, TypeScript, or a crate."""
    from pie_py.build.errors import BuildError
    from pie_py.build.javascript import build_program
    from pie_py.build.python import build_component
    from pie_py.build.rust import build_crate
    from pie_py.config.server import ServerConfig

    try:
        found = find_target(target, entry)
    except BadTarget as error:
        raise click.BadParameter(str(error), param_hint="PATH") from None
    if found is None:
        raise click.BadParameter(f"{target} does not exist", param_hint="PATH")
    if found.kind == "component":
        raise click.BadParameter(f"{target} is a component already", param_hint="PATH")
    if packages and found.kind != "python":
        raise click.UsageError(
            "--package is for Python; a crate names its own in Cargo.toml, and JavaScript has them"
            " in node_modules"
        )
    output = output or Path(f"{found.name}.wasm")
    try:
        with progress(f"building {found.path}"):
            if found.kind == "python":
                build_component(found.path, list(packages), output)
            elif found.kind == "javascript":
                build_program(found.path, output, ServerConfig().cache_folder)
            else:
                build_crate(found.path, output)
    except BuildError as error:
        say(f"error: {error}")
        sys.exit(EXIT_FAILED)
    click.echo(str(output))
