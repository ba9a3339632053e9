"""From a program's source to a component."""

import subprocess
from collections.abc import Mapping
from pathlib import Path


class BuildError(Exception):
    """A component could not be built; the text says why and how to mend it."""


def run_tool(
    command: list[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a step of a build, and takes all that it says. It reads nothing from a terminal."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600.0,
        check=False,
    )
