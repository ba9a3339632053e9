"""The logs of the server's processes: lines for people, or JSON for programs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from pie_py.config.left_out import left_out
from pie_py.config.printable import printable
from pie_py.config.section import Section

if TYPE_CHECKING:
    from structlog.types import Processor


MOST_SAID = 4000  # characters of a value in a line


class LogConfig(Section):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"  # and what is graver
    format: Literal["text", "json"] = "text"  # on standard error


class _Lines:
    """A stream that drops what cannot be written: no process ends for its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def set_up_logs(config: LogConfig) -> None:
    """Logs as configured, from now on; what libraries log comes in the same form."""
    # It takes as long as all else that reads a configuration, and with the library of which its
    # coloured tracebacks are twice that.
    with left_out("rich"):
        import structlog

    level = logging.getLevelNamesMapping()[config.level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(
            fmt="iso" if config.format == "json" else "%Y-%m-%d %H:%M:%S",
            utc=config.format == "json",
        ),
    ]
    rendered = _rendered(config)
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Lines(sys.stderr))),
    )
    handler = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[remove, *rendered]
        )
    )
    # Libraries log at `info` what is of no use to an operator.
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)


def _without_control_characters(
    logger: object, name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Keeps strangers' texts from making a second line, or acting on a terminal."""
    return {
        key: printable(value, MOST_SAID) if isinstance(value, str) and key != "exception" else value
        for key, value in event.items()
    }


def _rendered(config: LogConfig) -> list[Processor]:
    import structlog

    if config.format == "json":
        # `dict_tracebacks` would print local variables, arguments of users among them.
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # Plain tracebacks, for the same reason.
    return [
        _without_control_characters,
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        ),
    ]


# Of what `first_time` says: of a worker that loads its models.
listeners: list[Callable[[str], object]] = []


def first_time(text: str) -> None:
    """Says what is done now once on a machine and takes long, such as "compiling the kernel (once,
    about 5 s)": logged, and told to waiting users.
    """
    import structlog

    structlog.get_logger("pie.worker.load").info(text)
    for listener in listeners:
        listener(text)
