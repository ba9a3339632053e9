"""How a Python process is started by another."""

from __future__ import annotations

import sys


def python_command(*arguments: str) -> list[str]:
    """The command of a child that runs this Python, such as `python_command("-m", "pie_control")`.

    All children are started by it. Without `-P`, `-m` and `-c` import from the folder one stands in
    before the standard library: a user's `random.py` there would stop the server, and a stranger's
    would run in it. PYTHONPATH, which a user sets on purpose, still counts.
    """
    return [sys.executable, "-P", *arguments]
