"""One server for all conformance cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance.conformance_server import Place, start


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server, and the names that the cases use."""
    with start(tmp_path_factory.mktemp("conformance")) as running:
        yield running
