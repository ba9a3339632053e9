"""The main job where the system lacks what Linux on a server has."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pie_py.client.sync import Client

ROOT = Path(__file__).parents[2]
# Every process of the job imports this before anything else.
ELSEWHERE = """
from pathlib import Path
from pie_py.config import platform
platform.PROC, platform.c_function = Path("/nowhere"), lambda name: None
Path({marks!r}, str(__import__("os").getpid())).touch()
"""
ASKS = """
from inferlet import Context, Model, Sampler

async def main():
    return await Context(Model.load()).fill("Once upon a time").generate(
        Sampler.greedy(), max_tokens=8).collect_text()
"""
GIBIBYTES = 200


@pytest.fixture(scope="module")
def told_here() -> str:
    """What the program says where the system lacks nothing but address space."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        door, log = f"ipc://{name}/door", Path(name, "log")
        serve = f"{sys.executable} -m pie_py serve --no-http --endpoint {door}"
        env = {**os.environ, "XDG_DATA_HOME": name}
        with (
            log.open("wb") as told,
            subprocess.Popen(
                ["sh", "-c", f"ulimit -v {GIBIBYTES << 20} && exec {serve}"], stderr=told, env=env
            ) as server,
        ):
            try:
                while not Path(name, "door").exists():
                    assert server.poll() is None, log.read_text()
                    time.sleep(0.05)
                with Client(door) as client:
                    assert 4 < client.server_info()["max_instances"] < GIBIBYTES // 8
                    program = client.upload(ASKS.encode(), name="asks")
                    answer = client.launch(program).result()
            finally:
                server.terminate()
        assert "fewer instances at once" in log.read_text()
    return answer


@pytest.mark.nightly
def test_a_system_with_little_address_space_has_fewer_instances(told_here: str) -> None:
    assert told_here


@pytest.mark.nightly
def test_the_main_job_needs_nothing_of_linux_alone(told_here: str, tmp_path: Path) -> None:
    marks, site, program = tmp_path / "marks", tmp_path / "site", tmp_path / "asks.py"
    marks.mkdir()
    site.mkdir()
    program.write_text(ASKS)
    (site / "sitecustomize.py").write_text(ELSEWHERE.format(marks=str(marks)))
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "PYTHONPATH": f"{site}:{ROOT}"}
    command = [sys.executable, "-m", "pie_py", "run", str(program)]
    there = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert there.returncode == 0, there.stderr
    assert there.stdout == f"{told_here}\n"
    assert len(list(marks.iterdir())) > 2, "control and worker, too"
