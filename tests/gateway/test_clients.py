"""Scripts of the clients that the tests have anyway, in their short form: nothing is wrong. All are
run at length by `pytest -m nightly`, each in an environment of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from clients.clients import PACKAGES, Outcome, names, outcomes, prepared, python_command
from packaging.requirements import Requirement
from support.gateways import Gateway
from support.servers import Server

from pie_py.config.kept_files import cache_folder


def is_here(client: str) -> bool:
    wanted = PACKAGES / f"{client}.txt"
    try:
        for line in wanted.read_text().splitlines():
            version(Requirement(line).name)
    except (PackageNotFoundError, FileNotFoundError):  # a client of Node's has no such file
        return False
    return True


HERE = [name for name in names() if is_here(name)]


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Iterator[Gateway]:
    models = [{"source": str(smollm2), "name": "smollm2", "kv_pages": 512}]
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Server(Path(folder), models=models) as server,
        Gateway(server, Path(folder)) as gateway,
        gateway.http() as http,
    ):
        while http.get("/v1/models").status_code == 503:  # it loads
            time.sleep(0.2)
        yield gateway


def wrong(gateway: Gateway, command: list[str], model: str, *, short: bool) -> list[Outcome]:
    found = list(outcomes(command, gateway.url, model, short=short))
    assert "right" in {one.outcome for one in found}
    return [one for one in found if one.outcome == "wrong"]


@pytest.mark.slow
@pytest.mark.parametrize("client", HERE)
def test_with_the_embedded_model(gateway: Gateway, client: str) -> None:
    command = python_command(sys.executable, client)
    assert wrong(gateway, command, "pie-tiny", short=True) == []


@pytest.mark.slow
def test_with_a_real_model(real: Gateway) -> None:
    """One of them: the others ask the same gateway, and a real model is slow."""
    command = python_command(sys.executable, "openai")
    assert wrong(real, command, "smollm2", short=True) == []


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("client", names())
def test_all_cases_of_each(gateway: Gateway, real: Gateway, client: str) -> None:
    command = prepared(client, cache_folder() / "clients")
    for where, model in ((gateway, "pie-tiny"), (real, "smollm2")):
        assert wrong(where, command, model, short=False) == []
