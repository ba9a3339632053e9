"""`python tests/attacks NAME`: the attacks at length, each with a report; `--help` lists them.

A goal that is missed makes the exit status 1. Tests in this folder run short forms.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # as pytest has it

from pie_py.bench.benchmark import Benchmarks  # noqa: E402

MODULES = {
    "table": "attacks.table",
    "frames": "attacks.frames",
    "calls": "attacks.calls",
    "kills": "attacks.kills",
    "soak": "attacks.soak",
}

main = Benchmarks(
    MODULES,
    name="attacks",
    help="Attack servers that are started here, and report what came of it.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

if __name__ == "__main__":
    main(prog_name="python tests/attacks")
