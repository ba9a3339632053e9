"""An empty database of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.postgres import Postgres


@pytest.fixture
def address(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as address:
        yield address
