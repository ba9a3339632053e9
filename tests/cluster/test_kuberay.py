"""The example for KubeRay: its form, its configuration, and the commands that it runs."""

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

FILE = Path(__file__).parents[2] / "packaging/kuberay.yaml"


@pytest.fixture
def spec() -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert (told["apiVersion"], told["kind"]) == ("ray.io/v1", "RayCluster")
    assert told["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    found: dict[str, Any] = told["spec"]
    return found


def container(group: dict[str, Any]) -> dict[str, Any]:
    pod = group["template"]["spec"]
    (found,) = pod["containers"]
    mounts = {mount["name"] for mount in found["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    return dict(found)


def test_the_commands_are_ours(spec: dict[str, Any]) -> None:
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        script = container(group)["args"][0].replace("\\\n", " ")
        for line in re.findall(r"pie-py cluster (.*?) &&", script):
            name, *args = shlex.split(line)
            known = command.commands[name]
            args = [re.sub(r"\$\w+", "tcp://10.0.0.1:7743", arg) for arg in args]
            parent = click.Context(main, **main.context_settings)
            known.make_context(name, args, parent)  # options that there are, values that fit


def test_the_head_is_configured_as_clusters_are(spec: dict[str, Any], tmp_path: Path) -> None:
    script = container(spec["headGroupSpec"])["args"][0]
    text = script.partition("<<END\n")[2].partition("END\n")[0].replace("$POD_IP", "10.0.0.1")
    (tmp_path / "cluster.toml").write_text(text)
    config = read_config(tmp_path / "cluster.toml")
    (workers,) = spec["workerGroupSpecs"]
    assert config.autoscale is not None
    assert config.autoscale.max == workers["maxReplicas"]
    assert config.autoscale.gpus == container(workers)["resources"]["limits"]["nvidia.com/gpu"]
    assert yaml.safe_load(yaml.safe_load(workers["rayStartParams"]["resources"])) == {"pie_node": 1}


def test_all_who_talk_to_ray_have_its_token(spec: dict[str, Any]) -> None:
    environments = [spec["autoscalerOptions"]["env"]]
    environments += [
        container(group)["env"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    ]
    for environment in environments:
        told = {variable["name"]: variable for variable in environment}
        assert told["RAY_AUTH_MODE"]["value"] == "token"
        assert told["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["key"] == "auth_token"
