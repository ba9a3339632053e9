"""`python -m pie_control --config JSON`: the control process, as the command line starts it."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys

import structlog
import trio

from pie_control.server import serve
from pie_py.config.server import ServerConfig

log = structlog.get_logger("pie.server")


def main() -> int:
    """Serves until SIGINT, SIGTERM, or (with `--with-parent`) the end of standard input.

    Says on standard output, in one line of JSON, that it is ready and where, or what went wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m pie_control")
    parser.add_argument("--config", required=True, help="a ServerConfig, as JSON")
    parser.add_argument("--with-parent", action="store_true", help="exit when stdin closes")
    parser.add_argument("--log-level", default="info")
    options = parser.parse_args()
    level = logging.getLevelNamesMapping()[options.log_level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            # Plain: the default one prints local variables, arguments of users among them.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    config = ServerConfig.model_validate(json.loads(options.config))
    try:
        trio.run(_run, config, options.with_parent)
    except Exception as error:  # what the server's tasks raise comes in groups
        _say({"error": str(_first(error))})
        log.debug("cannot serve", exc_info=True)
        return 1
    return 0


async def _run(config: ServerConfig, with_parent: bool) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
        if with_parent:
            nursery.start_soon(_stop_with_parent, nursery.cancel_scope)
        endpoint = await nursery.start(lambda task_status: serve(config, task_status=task_status))
        _say({"ready": True, "endpoint": endpoint})


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def _stop_with_parent(scope: trio.CancelScope) -> None:
    await trio.lowlevel.wait_readable(sys.stdin)
    scope.cancel()


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
