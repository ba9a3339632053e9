"""PostgreSQL, and an empty database of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.postgres import Postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def address(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as address:
        yield address
