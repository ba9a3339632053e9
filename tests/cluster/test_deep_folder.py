"""A cluster starts wherever its folder lies, such as below a home with a long name."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from support.clusters import Cluster

from pie_cluster.machines.machine import ray_folder

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")
pytestmark = pytest.mark.slow


def test_a_cluster_in_a_deep_folder() -> None:
    """Paths of Ray's sockets have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name) / ("deep" * 15)
        with Cluster(folder) as cluster, cluster.client() as client:
            assert client.server_info()["version"]
            short = ray_folder(folder)
            assert (short.parent.stat().st_mode & 0o777, len(str(short)) <= 40) == (0o700, True)
            assert any(short.glob("session_*/sockets/*"))
        shutil.rmtree(short.parent)
    assert ray_folder(Path("/srv/pie")) == Path("/srv/pie/ray")
