"""What starts clusters: the example for Kubernetes, and the unit for systemd: their form, their
configuration, and the commands that they run.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from pie_cluster.command import command
from pie_cluster.machines.settings import read_config
from pie_py.cli import main

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Ray")

FILE = Path(__file__).parents[2] / "packaging/kubernetes.yaml"


@pytest.fixture
def parts() -> list[dict[str, Any]]:
    """The head, the nodes, and what scales them."""
    return list(yaml.safe_load_all(FILE.read_text(encoding="utf-8")))


@pytest.mark.parametrize(("name", "count"), [(FILE.name, 3), ("pie-py-cluster.service", 3)])
def test_the_commands_are_ours(name: str, count: int) -> None:
    text = FILE.with_name(name).read_text().replace("\\\n#", " ").replace("\\\n", " ")
    lines = re.findall(r"pie-py cluster (.*?)'?$", text, flags=re.MULTILINE)
    assert len(lines) == count
    for line in lines:
        what, *args = shlex.split(line.partition(" &&")[0])
        known = command.commands[what]
        args = [re.sub(r"\$\w+", "tcp://10.0.0.1:7743", arg) for arg in args]
        parent = click.Context(main, **main.context_settings)
        known.make_context(what, args, parent)  # options that there are, values that fit


def test_the_head_is_configured_as_clusters_are(
    parts: list[dict[str, Any]], tmp_path: Path
) -> None:
    (head,) = parts[0]["spec"]["template"]["spec"]["containers"]
    text = head["args"][0].partition("<<END\n")[2].partition("END\n")[0]
    (tmp_path / "cluster.toml").write_text(text.replace("$POD_IP", "10.0.0.1"))
    config = read_config(tmp_path / "cluster.toml")
    (gateway, http) = (port["containerPort"] for port in head["ports"])
    assert config.endpoint.endswith(f":{gateway}")
    assert config.gateway is not None
    assert str(config.gateway.http).endswith(f":{http}")


def test_what_is_scaled_is_there_and_is_measured(parts: list[dict[str, Any]]) -> None:
    _, nodes, scaled = parts
    assert scaled["spec"]["scaleTargetRef"]["name"] == nodes["metadata"]["name"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    (metric,) = re.findall(r"pie_\w+", query)
    source = FILE.parents[1] / "gateway/pie_gateway/metrics/server.py"
    assert metric in source.read_text()
