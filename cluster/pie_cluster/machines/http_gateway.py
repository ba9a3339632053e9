"""The cluster's HTTP gateway: an address that stays the same when it is started again."""

from __future__ import annotations

import os
import socket

from pie_cluster.machines.settings import ClusterProblem, WrongSettings
from pie_py.config.gateway import DEFAULT_HTTP, GatewayConfig, parse_address


def chosen(gateway: GatewayConfig | None) -> GatewayConfig | None:
    """The settings with the address where it will serve; None if there is to be none.

    Without an address that is a server's default one, or another port if that is taken.

    Raises:
        WrongSettings: if a file cannot be read.
        ClusterProblem: if the address is in use.
    """
    if gateway is None or not gateway.enabled:
        return None
    try:
        address = _free(gateway.http or DEFAULT_HTTP)
    except OSError as error:
        if gateway.http is not None:
            why = (error.strerror or str(error)).partition(" (")[0]
            raise ClusterProblem(
                f"HTTP cannot be served at {gateway.http}: {why}; choose another http in [gateway]"
            ) from None
        address = _free(f"{DEFAULT_HTTP.rpartition(':')[0]}:0")
    files = {}
    for name in ("tls_certificate", "tls_key"):
        path = getattr(gateway, name)
        if path is not None:
            if not os.access(path, os.R_OK):
                raise WrongSettings(f"gateway.{name}: {path} cannot be read")
            files[name] = path.absolute()
    if len(files) == 1:
        raise WrongSettings("gateway.tls_certificate and gateway.tls_key go together")
    return gateway.model_copy(update={"http": address, **files})


def _free(address: str) -> str:
    """HOST:PORT where nothing listens now; port 0 is any. Raises `OSError` if nothing can."""
    host, port = parse_address(address)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    with socket.create_server((host, port), family=family) as bound:
        return f"{address.rpartition(':')[0]}:{bound.getsockname()[1]}"
