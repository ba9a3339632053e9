"""`python -m pie_gateway --config JSON`: the gateway, as the command line starts it."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys

import structlog

from pie_gateway.listening import CannotServe
from pie_gateway.serving import serve
from pie_py.config.server import ServerConfig


def main() -> int:
    """Serves until SIGINT, SIGTERM, or (with `--with-parent`) the end of standard input.

    Says on standard output, in one line of JSON, that it is ready and where, or what went wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m pie_gateway")
    parser.add_argument("--config", required=True, help="a ServerConfig, as JSON")
    parser.add_argument("--with-parent", action="store_true", help="exit when stdin closes")
    parser.add_argument("--log-level", default="info")
    options = parser.parse_args()
    _log(options.log_level)
    config = ServerConfig.model_validate(json.loads(options.config))
    try:
        asyncio.run(serve(config, with_parent=options.with_parent, on_ready=_ready))
    except CannotServe as error:
        _say({"error": str(error)})
        return 1
    return 0


def _log(level: str) -> None:
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _ready(url: str) -> None:
    _say({"ready": True, "endpoint": url})


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
