"""Puts the Python runtime into the wheel: building it takes the first program of a user 10 s."""

import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RUNTIMES = "pie_py/_share/runtimes"


class RuntimeHook(BuildHookInterface):
    """Builds the runtime from the sources that the wheel is made of."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Not for an editable installation, whose sources change."""
        if self.target_name != "wheel" or version != "standard":
            return
        sys.path[:0] = [self.root, str(Path(self.root) / "sdk/python")]
        from pie_py.build.python import runtime_component

        built = runtime_component(Path(mkdtemp()))
        build_data["force_include"][str(built)] = f"{RUNTIMES}/{built.name}"
