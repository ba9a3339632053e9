"""`python -m pie_gateway --config JSON`: the gateway, as the command line starts it."""

from __future__ import annotations

import asyncio
import sys

from pie_gateway.listening import CannotServe
from pie_gateway.serving import serve
from pie_py.config.child import read_options, report_error, report_ready


def main() -> int:
    """Serves until SIGINT, SIGTERM, or (with `--with-parent`) the end of standard input.

    Says on standard output, in one line of JSON, that it is ready and where, or what went wrong.
    """
    config, with_parent = read_options("pie_gateway")
    try:
        asyncio.run(serve(config, with_parent=with_parent, on_ready=report_ready))
    except CannotServe as error:
        report_error(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
