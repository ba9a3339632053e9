"""Scripts of the clients that the tests have anyway, in their short form: nothing is wrong."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support.gateways import Gateway
from support.servers import Server

from benchmarks.clients.clients import PACKAGES, Outcome, names, outcomes, python_command


def is_here(client: str) -> bool:
    wanted = PACKAGES / f"{client}.txt"
    try:
        for line in wanted.read_text().splitlines():
            version(Requirement(line).name)
    except (PackageNotFoundError, FileNotFoundError):  # a client of Node's has no such file
        return False
    return True


HERE = [name for name in names() if is_here(name)]
ELSEWHERE = ", ".join(name for name in names() if name not in HERE)
skipped = pytest.mark.skip(reason=f"`python -m benchmarks clients` installs {ELSEWHERE}")
CLIENTS: list[Any] = [*HERE, pytest.param("others", marks=skipped)]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Iterator[Gateway]:
    models = [{"source": str(smollm2), "name": "smollm2", "kv_pages": 512}]
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Server(Path(folder), models=models) as server,
        Gateway(server, Path(folder)) as gateway,
    ):
        yield gateway


def wrong(gateway: Gateway, client: str, model: str) -> list[Outcome]:
    command = python_command(sys.executable, client)
    found = list(outcomes(command, gateway.url, model, short=True))
    assert "right" in {one.outcome for one in found}
    return [one for one in found if one.outcome == "wrong"]


@pytest.mark.parametrize("client", CLIENTS)
def test_with_the_embedded_model(gateway: Gateway, client: str) -> None:
    assert wrong(gateway, client, "pie-tiny") == []


def test_with_a_real_model(real: Gateway) -> None:
    """One of them: the others ask the same gateway, and a real model is slow."""
    assert wrong(real, "openai", "smollm2") == []
