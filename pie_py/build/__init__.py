"""From a program's source to a component, with the SDKs of guests."""

import importlib.util
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pie_py.config.shipped_files import shipped_folder


class BuildError(Exception):
    """A component could not be built; the text says why and how to mend it."""


TOOL_SECONDS = 3600.0


def run_tool(
    command: list[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a step of a build, and takes all that it says. It reads nothing from a terminal. Raises
    `BuildError` if it takes too long.
    """
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} has not ended within {TOOL_SECONDS:g} s") from None


_CHECKOUT = Path(__file__).resolve().parents[2]


def sdk_folder(language: str) -> Path:
    """The folder of the SDK for `python`, `js` or `rust`.

    A wheel has the generated files; those of a checkout are made first, unless they are up to date.
    Raises `BuildError` if there is no package `inferlet`.
    """
    folder = _python() if language == "python" else shipped_folder(language)
    if folder.is_relative_to(_CHECKOUT / "sdk"):
        from codegen import ensure

        ensure()
    return folder


def _python() -> Path:
    spec = importlib.util.find_spec("inferlet")
    if spec is None or spec.origin is None:
        raise BuildError("the inferlet package is not installed beside pie_py; reinstall pie-py")
    return Path(spec.origin).resolve().parent
