"""One engine, with the Python runtime loaded, for all tests of the SDK."""

from __future__ import annotations

import pytest
from support.sdk_rig import Rig


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Runs Python sources in real Wasm."""
    return Rig(tmp_path_factory.mktemp("rig"))
