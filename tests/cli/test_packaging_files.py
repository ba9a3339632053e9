"""The systemd unit and the container files: what they say works, without systemd and containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pie_py.testing.script import replaying

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging"
CONTAINERS = ("Containerfile", "Containerfile.cuda")
PIE_PY = (sys.executable, "-m", "pie_py")


def instructions(name: str) -> list[tuple[str, str]]:
    """What a container file says, line by line: the instruction and the rest."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def of(name: str, kind: str) -> str:
    return next(rest for found, rest in reversed(instructions(name)) if found == kind)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def manager(place: str) -> Iterator[socket.socket]:
    """A socket as systemd's, which is told that a server is ready."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(f"{place}/notify")
        told.settimeout(120)
        yield told


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", ["pie-py.service", "pie-py-cluster.service"])
def test_a_unit_is_one(tmp_path: Path, name: str) -> None:
    unit = tmp_path / name
    text = (FOLDER / unit.name).read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/pie-py/bin/pie-py", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(unit) not in done.stderr, done.stderr  # nor a word it does not know


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_have_what_they_copy_and_install(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert [kind for kind, _ in instructions(name)].count("FROM") == 2
    assert of(name, "USER") == "pie"
    for extra in re.findall(r"\.whl\)\[(\w+)\]", text):
        assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for command in (rest for kind, rest in instructions(name) if kind == "RUN"):
        checked = subprocess.run(["sh", "-n", "-c", command], check=False)
        assert checked.returncode == 0, command
    assert of(CONTAINERS[0], "CMD") == of(CONTAINERS[1], "CMD")


@pytest.mark.nightly
def test_what_a_container_runs(short_folder: Path) -> None:
    """Keys are made, the server comes up as CMD says, the health check agrees, SIGTERM ends it."""
    name = CONTAINERS[0]
    place = str(short_folder)
    variables = dict(word.split("=", 1) for word in shlex.split(of(name, "ENV")))
    settings = replaying(short_folder)
    environment = {
        **os.environ,
        **{key: value.replace("/data", place) for key, value in variables.items()},
        "PIE_PY_CACHE_FOLDER": os.environ.get("PIE_PY_CACHE_FOLDER", f"{place}/cache"),
        "PIE_PY_MODELS": json.dumps(settings["models"]),
        "PIE_PY_WORKER_MODULE": settings["worker_module"],
        "NOTIFY_SOCKET": f"{place}/notify",
    }
    assert json.loads(of(name, "ENTRYPOINT")) == ["pie-py"]
    key = short_folder / "ada.key.json"
    add = [*PIE_PY, "keys", "add", "ada", "-o", str(key)]
    subprocess.run(add, env=environment, check=True, timeout=60, capture_output=True)
    clients, http = free_port(), free_port()
    ports = {"0.0.0.0:7743": f"127.0.0.1:{clients}", "0.0.0.0:8000": f"127.0.0.1:{http}"}
    command = of(name, "CMD")
    for old, new in ports.items():
        assert old in command
        command = command.replace(old, new)
    health = json.loads(of(name, "HEALTHCHECK").partition("CMD ")[2])
    health = [part.replace(":8000", f":{http}") for part in health]
    words = [*PIE_PY, *json.loads(command)]
    with (
        manager(place) as told,
        subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stderr is not None
            assert any("ready at" in line for line in process.stderr), "it has ended"
            assert told.recv(100) == b"READY=1"
            subprocess.run([sys.executable, *health[1:]], check=True, timeout=30)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.nightly
def test_the_way_to_a_service_is_literally_one(short_folder: Path) -> None:
    """What operating.md types, then the unit's command with its environment: the key opens."""
    page = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    unit = (FOLDER / "pie-py.service").read_text(encoding="utf-8")
    [start] = re.findall(r"^ExecStart=(.*)", unit, re.MULTILINE)
    given = dict(
        line.split("=", 1) for line in re.findall(r"^Environment=(.*)", unit, re.MULTILINE)
    )
    typed = re.findall(r"^    sudo -u pie-py (env .*)", page, re.MULTILINE)
    assert len(typed) == 2
    place = str(short_folder)
    port = free_port()
    settings = f'endpoint = "tcp://0.0.0.0:{port}"\n[gateway]\nhttp = "127.0.0.1:{free_port()}"\n'
    places = {
        "/opt/pie-py/bin/pie-py": shlex.join(PIE_PY),
        "/var/lib/pie-py": place,
        "/etc/pie-py/pie.toml": f"{place}/pie.toml",
    }
    (short_folder / "pie.toml").write_text(settings)

    def here(text: str) -> str:
        for old, new in places.items():
            text = text.replace(old, new)
        return text

    for command in typed:
        subprocess.run(shlex.split(here(command)), check=True, timeout=60, capture_output=True)
    replay = replaying(short_folder)
    environment = {
        **os.environ,
        "PIE_PY_MODELS": json.dumps(replay["models"]),
        "PIE_PY_WORKER_MODULE": replay["worker_module"],
        "PIE_PY_DATA_FOLDER": here(given["PIE_PY_DATA_FOLDER"]),
        "NOTIFY_SOCKET": f"{place}/notify",
    }
    words = shlex.split(here(start))
    with (
        manager(place) as told,
        subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            assert told.recv(100) == b"READY=1"
            asked = [*PIE_PY, "quota", "--endpoint", f"tcp://127.0.0.1:{port}"]
            asked += ["--key", f"{place}/ada.key.json"]
            assert "\nada " in subprocess.check_output(asked, text=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
