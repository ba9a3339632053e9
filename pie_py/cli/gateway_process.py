"""The HTTP gateway beside a server of `pie-py serve`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import structlog

from pie_py.config.processes import Supervisor
from pie_py.config.server import ServerConfig
from pie_py.config.server_process import ServerFailed, ServerProcess

log = structlog.get_logger("pie.serve")


@contextmanager
def gateway_process(config: ServerConfig) -> Iterator[str]:
    """The URL of a gateway that runs within the context, and is started again whenever it ends. The
    configuration is that of its server, with the endpoint at which that listens. Raises
    `ServerFailed`: it cannot serve, as where its address is taken.
    """
    first = ServerProcess(config, module="pie_gateway")
    try:
        url = first.wait_ready()
    except ServerFailed:
        first.stop()
        raise
    # Users have this address, also where the default one was taken.
    gateway = config.gateway.model_copy(update={"http": urlsplit(url).netloc})
    config = config.model_copy(update={"gateway": gateway})

    def attend(child: ServerProcess) -> None:
        try:
            if child is not first:
                log.info("gateway ready again", url=child.wait_ready())
            child.wait()
        except ServerFailed as error:
            log.error("the gateway does not start", reason=str(error))

    def on_lost(reason: str, pause: float) -> None:
        log.error("gateway lost, starting another", reason=reason, seconds=pause)

    def start() -> ServerProcess:
        return ServerProcess(config, module="pie_gateway")

    supervisor = Supervisor("gateway", start, on_lost, attend=attend, child=first)
    try:
        yield url
    finally:
        supervisor.stop()
