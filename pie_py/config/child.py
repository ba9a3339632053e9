"""What the processes share that the command line starts: their options, and what they tell it."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress

from pie_py.config.logs import set_up_logs
from pie_py.config.server import ServerConfig


def read_options(module: str) -> tuple[ServerConfig, bool]:
    """The configuration, and whether to stop with the parent; sets up the log.

    Args:
        module: of the process, for its usage.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--config", required=True, help="a ServerConfig, as JSON")
    parser.add_argument("--with-parent", action="store_true", help="exit when stdin closes")
    options = parser.parse_args()
    config = ServerConfig.model_validate(json.loads(options.config))
    set_up_logs(config.log)
    return config, options.with_parent


def tell_ready(endpoint: str) -> None:
    """Tells the parent that the process serves, and where."""
    _tell({"ready": True, "endpoint": endpoint})


def tell_error(reason: str) -> None:
    """Tells the parent why the process cannot serve."""
    _tell({"error": reason})


def _tell(message: dict[str, object]) -> None:
    with suppress(OSError):  # a log on a full disk; a parent that has gone is noticed elsewhere
        print(json.dumps(message), flush=True)
