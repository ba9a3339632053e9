"""Makes the generated files of the SDK, which the package contains."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface):
    """Runs the generators of the checkout around this folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """They need nothing but the standard library."""
        sys.path.insert(0, str(Path(self.root).parent))
        from codegen import ensure

        ensure()
