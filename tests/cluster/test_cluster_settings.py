"""Settings that cannot work are wrong usage: one line, the status for it, and nothing has begun."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pie_py.cli import main

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")

FREE = 'endpoint = "tcp://127.0.0.1:*"\n'
CASES = {
    "endpoint =": "is no TOML",
    f"nodes = {'1' * 5000}": "is no TOML",
    "nodez = 3": "nodez: Extra inputs",
    "[server]\nmodels = 3": "server.models: Input should be",
    '[server]\nendpoint = "tcp://127.0.0.1:1"': "server.endpoint is set by the cluster",
    "[server.gateway]\nenabled = true": "or write it without server.",
    "[[server.models]]\non_demand = true": "models of a cluster serve from the start",
    'endpoint = "ipc:///tmp/door"': "give tcp://",
    'endpoint = "nowhere"': "'nowhere' is no endpoint",
    'endpoint = "tcp://0.0.0.0:7743"': "tells nobody where to connect",
    f'{FREE}host = "10.77.0.9"': "must both be reached from other machines, or neither",
    'endpoint = "tcp://10.77.0.9:1"': "must both be reached from other machines, or neither",
    f'{FREE}host = "desk"': "Expected 4 octets in 'desk'",
    f'{FREE}host = "127.0.0.1"\n[gateway]\nhttp = "8080"': "'8080' is not HOST:PORT",
    f'{FREE}[gateway]\ntls_key = "/none"': "gateway.tls_key: /none cannot be read",
    'endpoint = "tcp://10.77.0.9:1"\nhost = "10.77.0.9"': "is none of this machine",
    'ray_address = "auto"\nray_port = 6379': "needs a Ray of the cluster's own",
    'ray_address = "ray://127.0.0.1:10001"': "name the head of Ray instead",
}


def told(config: Path) -> str:
    """What `up` says of it: of each fault one line."""
    result = CliRunner().invoke(main, ["cluster", "up", "--config", str(config)])
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line for line in lines if line.startswith("Error: ")] == lines[-1:]
    return lines[-1]


@pytest.mark.parametrize(("text", "words"), CASES.items(), ids=CASES.values())
def test_settings_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f'folder = "{tmp_path / "cluster"}"\n{text}\n')
    assert words in told(file)
    assert not (tmp_path / "cluster/processes.json").exists()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read" in told(tmp_path / "none.toml")
    file = tmp_path / "cluster.toml"
    file.write_bytes(b'endpoint = "\xff\xfe"\n')
    assert "is no TOML" in told(file)
