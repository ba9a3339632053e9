"""A gateway that is to stop refuses by `/ready` first, and serves on meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx2
import pytest
from support.gateways import Gateway
from support.servers import Server


@pytest.mark.parametrize("how", ["SIGTERM", "parent"])
def test_a_balancer_sees_it_before_requests_fail(server: Server, tmp_path: Path, how: str) -> None:
    with Gateway(server, tmp_path, drain_seconds=2.0) as gateway, gateway.http() as http:
        assert http.get("/ready").status_code == 200
        if how == "SIGTERM":
            gateway.process.send_signal(signal.SIGTERM)
        else:
            gateway.ask_to_stop()
        while (ready := http.get("/ready")).status_code == 200:
            pass
        assert ready.json() == {"status": "the gateway is about to stop"}
        assert http.get("/v1/models").status_code == 200
        gateway.process.wait(30)
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{gateway.url}/ready")
