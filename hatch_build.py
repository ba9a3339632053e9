"""Puts the Python runtime into the wheel: building it takes the first program of a user 10 s."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RUNTIMES = "pie_py/_share/runtimes"


class RuntimeHook(BuildHookInterface):
    """Builds the runtime from the sources that the wheel is made of."""

    _folder: TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Not for an editable installation, whose sources change."""
        if self.target_name != "wheel" or version != "standard":
            return
        sys.path[:0] = [self.root, str(Path(self.root) / "sdk/python")]
        from pie_py.build.python import runtime_component

        self._folder = TemporaryDirectory()  # the wheel is written after this
        built = runtime_component(Path(self._folder.name))
        build_data["force_include"][str(built)] = f"{RUNTIMES}/{built.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was built for it."""
        if self._folder is not None:
            self._folder.cleanup()
