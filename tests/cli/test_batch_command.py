"""`pie-py batch` against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers import Server, until

PROGRAM = """
import asyncio


async def main(text: str, times: int = 1, seconds: float = 0.0) -> dict:
    await asyncio.sleep(seconds)
    if not text:
        raise ValueError("there is nothing")
    return {"text": text * times}
"""
PROMPT = {"prompt": "Once upon a", "max_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    models = [{"source": "pie-tiny", "kv_pages": 512}]
    with Server(models=models) as server:
        yield server.endpoint


class Files:
    """The files of one command, and the command."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.requests, self.output = folder / "in.jsonl", folder / "out.jsonl"
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)
        self._endpoint = endpoint

    def write(self, *lines: Any) -> None:
        """Writes lines that ask; texts as they are."""
        texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
        self.requests.write_text("\n".join(texts))

    def start(self, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pie_py", "batch", str(self.requests), *args]
        command += ["-o", str(self.output), "--endpoint", self._endpoint]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def run(self, *args: str) -> tuple[int, str]:
        """The exit status, and what it says."""
        process = self.start(*args)
        _, said = process.communicate(timeout=60)
        return process.returncode, said

    def answers(self) -> dict[Any, dict[str, Any]]:
        """By custom_id, or line."""
        found = map(json.loads, self.output.read_text().splitlines())
        return {each.get("custom_id", each.get("line")): each for each in found}


@pytest.fixture
def files(tmp_path: Path, endpoint: str) -> Files:
    return Files(tmp_path, endpoint)


def of_openai(name: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def test_prompts_and_requests_of_openai(files: Files) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    files.write(
        PROMPT,
        of_openai("a", "/v1/completions", **PROMPT, n=2),
        of_openai("b", "/v1/chat/completions", **chat),
        "",
        of_openai("c", "/v1/embeddings", input="x"),
        {**PROMPT, "nonsense": 1},
        "{",
        of_openai("a", "/v1/completions", **PROMPT),
    )
    status, said = files.run()
    assert status == 1
    assert "3 of 7 answered, 4 failed" in said
    found = files.answers()
    body = found["a"]["response"]["body"]
    assert found["a"]["error"] is None
    assert [each["text"] for each in body["choices"]] == [found[1]["result"]] * 2
    assert body["usage"]["completion_tokens"] == 6
    assert body["choices"][0]["finish_reason"] == "length"
    assert found["b"]["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert "/v1/embeddings" in found["c"]["error"]["message"]
    assert "nonsense" in found[6]["error"]["message"]
    assert found[7]["error"]["message"].startswith("no JSON")
    assert "line 7: " in said


def test_a_program_gets_the_fields_and_errors_are_of_their_lines(files: Files) -> None:
    lines = [{"text": "ä"}, {"text": ""}, {"text": "b", "times": 3, "custom_id": "third"}]
    files.write(*lines)
    status, said = files.run(str(files.program), "--set", "times=2")
    assert (status, "line 2: ValueError: there is nothing" in said) == (1, True)
    found = files.answers()
    assert found[1]["result"] == {"text": "ää"}
    assert found["third"]["result"] == {"text": "bbb"}
    before = [line for line in files.output.read_text().splitlines() if '"error"' not in line]
    files.write(lines[0], {"text": "c"}, lines[2])
    files.output.write_bytes(files.output.read_bytes() + b'{"line": 9')  # cut short by a crash
    status, said = files.run(str(files.program), "--set", "times=9")
    assert (status, "3 of 3 answered, 2 of them before" in said) == (0, True), said
    assert files.output.read_text().splitlines()[:2] == before  # not asked again
    assert files.answers()[2]["result"] == {"text": "c" * 9}
    files.write({"text": "other"}, lines[1], lines[2])
    assert files.run(str(files.program))[0] == 1  # a line that is another one is asked


def test_an_interrupted_batch_goes_on(files: Files) -> None:
    files.write(*({"text": str(n), "seconds": 0.05} for n in range(60)))
    process = files.start(str(files.program), "--at-once", "2")
    until(lambda: files.output.exists() and files.output.read_bytes().count(b"\n") >= 3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "left: the same command goes on" in said
    before = files.output.read_bytes()
    assert 3 <= before.count(b"\n") < 60
    assert files.run(str(files.program))[0] == 0
    assert files.output.read_bytes().startswith(before)
    found = files.answers()
    assert [found[n + 1]["result"]["text"] for n in range(60)] == [str(n) for n in range(60)]


def test_a_file_that_has_no_answers_is_left_alone(files: Files) -> None:
    files.write(PROMPT)
    files.output.write_text('{"mine": 1}\n')
    status, said = files.run()
    assert (status, files.output.read_text()) == (2, '{"mine": 1}\n')
    assert "line 1 of" in said
    files.output = files.requests
    assert files.run()[0] == 2
    assert files.run("missing")[0] == 2


def test_a_device_has_no_answers_to_read(files: Files) -> None:
    """`/dev/full` would be read for ever, as would a pipe that others write to."""
    files.write({"text": "a"})
    files.output = Path("/dev/full")
    status, said = files.run(str(files.program))
    assert (status, "No space left on device" in said) == (1, True), said
