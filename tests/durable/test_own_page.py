"""What docs/durable.md shows is true: the program is killed in front of its reader, and goes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import Server

PAGE = (Path(__file__).parents[2] / "docs" / "durable.md").read_text()


@pytest.mark.nightly
def test_the_page_is_true(short_folder: Path) -> None:
    source = re.findall(r"```python\n(# approval.py\n.*?)```", PAGE, re.DOTALL)[0]
    (short_folder / "approval.py").write_text(source)
    (short_folder / "other.py").write_text(source.replace("Order", "Parcel"))
    server = Server(short_folder).__enter__()
    environment = {**os.environ, "PIE_PY_ENDPOINT": server.endpoint}

    def pie_py(*args: str) -> str:
        command = [sys.executable, "-m", "pie_py", *args]
        done = subprocess.run(
            command, env=environment, cwd=short_folder, capture_output=True, text=True, check=True
        )
        return done.stdout

    question = ["--question", "The capital of Thessel is"]
    run = subprocess.Popen(
        [sys.executable, "-m", "pie_py", "run", "approval.py", "--durable", *question],
        env=environment,
        cwd=short_folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdin is not None
    assert run.stdout is not None
    asked = run.stdout.readline()
    assert re.fullmatch(r"Order 1: .* Shall I\?\n", asked)
    server.kill()
    server = Server(short_folder).__enter__()
    run.stdin.write("yes\n")
    run.stdin.flush()
    said, _ = run.communicate()
    assert said.startswith("yes:")
    assert run.returncode == 0

    [instance] = json.loads(pie_py("ps", "--all", "--json"))
    calls = json.loads(pie_py("calls", instance["id"], "--json"))
    sent = next(call["number"] for call in calls if call["call"] == "session.send")
    before = ["--at", str(sent - 1), "--source", "other.py", "--detach"]
    other = pie_py("branch", instance["id"], *before).strip()
    with server.client() as client:
        assert client.attach(other).receive() == asked.replace("Order", "Parcel")
        client.kill(other)
    pie_py("resume", other)
    with server.client() as client:
        client.send(other, "no")
        assert client.attach(other).result().startswith("no:")
    server.__exit__(None, None, None)
