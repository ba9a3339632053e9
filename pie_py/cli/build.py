"""`pie-py build`: a component from Python, Rust or JavaScript."""

from __future__ import annotations

from pathlib import Path

import click

from pie_py.cli.connect import FOLDER, NEW_FILE, fail, repeatable
from pie_py.cli.console import progress
from pie_py.cli.reached import prepare_runtime
from pie_py.cli.target import find_target


@click.command("build")
@click.argument("target", metavar="PATH", required=False)
@click.option(
    "--output", "-o", type=NEW_FILE, help="The component's file; NAME.wasm here by default."
)
@repeatable("--package", "packages", "NAME", help="Python package to put in.")
@click.option("--entry", help="Which of a library inferlet's programs to build.")
@click.option(
    "--runtime",
    type=click.Choice(["python", "javascript"]),
    help="Instead of PATH: what a server runs all sources of a language in.",
)
@click.option(
    "--cache-folder", type=FOLDER, help="Where the server keeps it, if its configuration says so."
)
def command(
    target: str | None,
    output: Path | None,
    packages: tuple[str, ...],
    entry: str | None,
    runtime: str | None,
    cache_folder: Path | None,
) -> None:
    """Build a component, and print its file: PATH is Python, JavaScript, TypeScript, or a crate.

    A server that is to run JavaScript sources needs `--runtime javascript` once, for which Node.js
    and npm's registry are needed. `pie-py run` and `pie-py test` do it by themselves.
    """
    from pie_py.cli.server_config import server_config

    cache_folder = cache_folder or server_config().cache_folder
    if runtime is not None:
        if target or output or packages or entry:
            raise click.UsageError("--runtime takes no PATH, and none of its options")
        click.echo(str(prepare_runtime(runtime, cache_folder)))
        return
    if target is None:
        raise click.UsageError("give a PATH, or --runtime")
    from pie_py.build import BuildError
    from pie_py.build.javascript import build_program
    from pie_py.build.python import build_component
    from pie_py.build.rust import build_crate

    found = find_target(target, entry)
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
                build_program(found.path, output, cache_folder)
            else:
                build_crate(found.path, output)
    except BuildError as error:
        fail(error)
    click.echo(str(output))
