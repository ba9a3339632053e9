"""Agents of a terminal, the newest of the day: each runs a command that the model asks for."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.gateways import Gateway
from support.javascript import UNREACHABLE
from support.servers import Server
from support.told_models import make_told

from pie_py.build.javascript import find_node
from pie_py.config.server import ServerConfig

PACKAGES = ("@anthropic-ai/claude-code", "@openai/codex")
ASK = "What is in secret.txt?"
READ = "cat secret.txt"
CALLS = {
    "claude": {"name": "Bash", "arguments": {"command": READ, "description": "Reads it"}},
    "codex": {"name": "exec_command", "arguments": {"cmd": READ}},
}
# The end of what the tool has given, or of a question about nothing, begins a script.
TEMPLATE = (
    "{% set ns = namespace(given='') %}{% for m in messages %}{{ m.role }}: {{ m.content[:99] }}\n"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('misplaced') }}{% endif %}"
    "{% if m.role == 'tool' %}{% set ns.given = m.content | trim %}{% endif %}{% endfor %}"
    "{% if tools %}{{ ns.given or '<|call|>' }}{% else %}<|title|>{% endif %}"
)
MARKERS = ["<tool_call>", "</tool_call>", "<|call|>", "<|title|>"]
CODEX = """
model_provider = "pie"
[model_providers.pie]
name = "pie"
base_url = "{url}/v1"
wire_api = "responses"
[analytics]
enabled = false
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of the agents' commands: the newest, or older ones if npm's registry is away."""
    folder = ServerConfig().cache_folder / "clients/agents"
    folder.mkdir(parents=True, exist_ok=True)
    found = folder / "node_modules"
    day = folder / "installed"
    if day.exists() and time.time() - day.stat().st_mtime < 86_400:  # that day's are here
        return found / ".bin"
    # The agents are 350 MB: who does not tell a version soon does not send them in time.
    why = trouble(20, "view", PACKAGES[0], "version", "--fetch-retries=0")
    if why is None:
        day.unlink(missing_ok=True)  # what is installed halfway is not used
        wanted = [f"{name}@latest" for name in PACKAGES]
        how = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder)]
        why = trouble(90, "install", *how, *wanted)
    if why is None:
        script = found / "@anthropic-ai/claude-code/install.cjs"  # puts the program in its place
        subprocess.run([find_node().node, str(script)], check=True, timeout=60)
        day.touch()
    if not day.exists():
        pytest.skip(f"the agents are not tried: {why}")
    return found / ".bin"


def trouble(seconds: float, *arguments: str) -> str | None:
    """Why npm's registry has not let npm do something in that time; other faults fail the test."""
    npm = [*find_node().npm, *arguments]
    try:
        done = subprocess.run(npm, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "npm's registry does not answer"
    if done.returncode and UNREACHABLE.search(done.stderr):
        return done.stderr[-300:]
    assert done.returncode == 0, done.stderr
    return None


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Of a model for each agent, which calls its tool, and then says what that has given."""
    models = []
    for name, call in CALLS.items():
        scripts = [
            ["<|call|>", "<tool_call>", json.dumps(call), "</tool_call>"],
            ["pelican", " was in the file."],
            ["<|title|>", "A title"],
        ]
        folder = tmp_path_factory.mktemp(name)
        follows = {text: then for script in scripts for text, then in pairwise(script)}
        make_told(folder, follows, TEMPLATE, MARKERS, special=True, longest=1 << 17)
        models.append({"source": str(folder), "name": name, "kv_pages": 256})
    with Server(models=models) as server, Gateway(server) as gateway:
        yield gateway


def said(command: list[str], folder: Path, **environment: str) -> str:
    """An agent's answer to the question, in a folder with the file, which is its home, too."""
    (folder / "secret.txt").write_text("a pelican")
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "HOME": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def requests(gateway: Gateway, path: str) -> list[int]:
    lines = [json.loads(line) for line in gateway.log.splitlines() if '"request"' in line]
    return [line["status"] for line in lines if line.get("path") == path]


def test_claude_code(programs: Path, gateway: Gateway, tmp_path: Path) -> None:
    text = said(
        [str(programs / "claude"), "--model", "claude", "-p", ASK],
        tmp_path,
        ANTHROPIC_BASE_URL=gateway.url,
        ANTHROPIC_API_KEY="none",
        DISABLE_TELEMETRY="1",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )
    assert text.strip() == "was in the file."
    assert requests(gateway, "/v1/messages") == [200, 200]


def test_codex(programs: Path, gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/config.toml").write_text(CODEX.format(url=gateway.url))
    free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    text = said([str(programs / "codex"), "exec", *free, "--model", "codex", ASK], tmp_path)
    assert text.strip() == "was in the file."
    assert requests(gateway, "/v1/responses") == [200, 200]
    assert '"namespace", "web_search"' in gateway.log, "what is left out is told"
