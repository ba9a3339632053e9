"""`pie-py replay`: a recorded run again, without a server and without a model."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pie_py.build.modules import read_program
from pie_py.cli.console import run_to_end
from pie_py.cli.stream import with_debugger
from pie_py.cli.target import BadTarget, find_target, program_bytes
from pie_py.config.processes import python_command
from pie_py.config.temporary import TemporaryFolder


@click.command("replay")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--calls", is_flag=True, help="Show each call, with its answer and its time.")
@click.option(
    "--source",
    metavar="PATH",
    help="A changed source to run instead: with more prints, or a breakpoint() in Python.",
)
def command(file: Path, calls: bool, source: str | None) -> None:
    """Run a recorded program again, on the answers that FILE has for it.

    FILE was written by `pie-py run NAME --record FILE`, or by `pie-py serve --record FOLDER`. No
    server and no model is needed. What the program sent, printed and returned comes again; where it
    asks for something else than it did then, the replay stops, and says where. Exit status: 1 if
    the program fails or departs from the record.
    """
    arguments = [str(file), *(["--calls"] if calls else [])]
    with TemporaryFolder() as folder:
        if source is not None:
            path = folder / "source"
            path.write_bytes(_source(source))
            arguments += ["--source", str(path)]
        status = run_to_end(python_command("-m", "pie_control.replaying", *arguments))
    sys.exit(status)


def _source(text: str) -> bytes:
    found = find_target(text)
    if found is None or found.kind not in ("python", "javascript"):
        raise BadTarget(f"{text} is no program in Python, JavaScript or TypeScript")
    read = with_debugger if found.kind == "python" else read_program
    return program_bytes(found.path, read)
