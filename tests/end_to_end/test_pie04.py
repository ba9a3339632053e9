"""The seven Python programs of Pie 0.4, with nothing but their imports changed.

They come with Pie's sources: `PIE_04_INFERLETS` names their folder `inferlets`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from support.mcp_servers import SERVER as TOOLS
from support.servers import Server

FOLDER = os.environ.get("PIE_04_INFERLETS")
# Arguments with which a small model comes to an end, and what the result says.
PROGRAMS = {
    "hierarchical-attention-python": ({"max_tokens": 20, "chunk_size_words": 8}, ".+"),
    "mcp-example-py": ({}, '"servers": \\["demo"\\].*"result": "hello"'),
    "mcts-python": ({"iterations": 2, "rollout_tokens": 8, "final_tokens": 8}, ""),
    "modular-cache-python": ({"max_tokens": 20}, ".+"),
    "py-concurrency-test": ({}, "done"),
    "python-constrained-decoding": (
        {"prompt": "Write a JSON object with the keys name, age, email and skills."},
        '"skills": \\[',
    ),
    "python-example": ({}, ".*"),
}


@pytest.mark.skipif(FOLDER is None, reason="PIE_04_INFERLETS names no folder of Pie's sources")
def test_they_run() -> None:
    mcp = {"servers": {"demo": {"command": sys.executable, "args": [TOOLS]}}}
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Server(Path(folder), models=[{"source": "pie-tiny"}], mcp=mcp) as server,
        server.client() as client,
    ):
        for name, (given, expected) in PROGRAMS.items():
            source = (Path(FOLDER or "") / name / "main.py").read_text()
            source = source.replace("from inferlet import", "from inferlet.pie04 import")
            program = client.upload(source.encode(), name=name)
            result = client.launch(program, ["--input", json.dumps(given)]).result()
            assert re.search(expected, result, re.DOTALL), name
