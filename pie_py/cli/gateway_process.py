"""The gateway beside a server of `pie-py serve`: kept alive as long as the server lives."""

from __future__ import annotations

import threading
from types import TracebackType
from urllib.parse import urlsplit

import structlog

from pie_py.client.server_process import ServerFailed, ServerProcess
from pie_py.config.processes import Backoff
from pie_py.config.server import ServerConfig

log = structlog.get_logger("pie.serve")


class GatewayProcess:
    """A gateway that is started again, at the same address, whenever it ends."""

    def __init__(self, config: ServerConfig) -> None:
        """Starts it and waits until it serves.

        Args:
            config: of the server, with the endpoint at which it listens.

        Raises:
            ServerFailed: it cannot serve, as where its address is taken.
        """
        self._config = config
        self._stopping = threading.Event()
        self._process = ServerProcess(config, module="pie_gateway")
        try:
            self.url = self._process.wait_ready()
        except ServerFailed:
            self._process.stop()
            raise
        # Users have this address, also where the default one was taken.
        address = urlsplit(self.url).netloc
        gateway = config.gateway.model_copy(update={"http": address})
        self._config = config.model_copy(update={"gateway": gateway})
        self._keeper = threading.Thread(target=self._keep, name="gateway", daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        backoff = Backoff()
        while True:
            status = self._process.wait()
            if self._stopping.is_set():
                return
            pause = backoff.pause()
            log.error("gateway lost, starting another", status=status, seconds=pause)
            if self._stopping.wait(pause):
                return
            backoff.start()
            self._process.stop()
            self._process = ServerProcess(self._config, module="pie_gateway")
            if self._stopping.is_set():
                self._process.stop()
                return
            try:
                log.info("gateway ready again", url=self._process.wait_ready())
            except ServerFailed as error:
                log.error("the gateway does not start", reason=str(error))

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._process.stop()
        self._keeper.join()
