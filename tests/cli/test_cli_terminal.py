"""A person at a terminal: `chat` in a pseudo-terminal, `ask`, and messages by standard input."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.servers import Server

from pie_py.cli import main

RECEIVER = """
from inferlet import session

async def main(n: int = 3):
    return [await session.receive() for _ in range(n)]
"""
COMMAND = [sys.executable, "-m", "pie_py"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        (server.folder / "receiver.py").write_text(RECEIVER)
        yield server


def typed(server: Server, text: str | None, *args: str) -> subprocess.CompletedProcess[str]:
    """A command at a server, with a text on standard input."""
    command = [*COMMAND, args[0], "--endpoint", server.endpoint, *args[1:]]
    stdin = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **stdin)


def asked(server: Server, text: str | None, *args: str) -> subprocess.CompletedProcess[str]:
    """As `typed`, in this process: for commands that do not read while they run."""
    words = [args[0], "--endpoint", server.endpoint, *args[1:]]
    done = CliRunner().invoke(main, words, input=text)
    assert "Traceback" not in done.stderr
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *args: str, home: Path) -> None:
        self._file, inside = pty.openpty()
        changed = {"TERM": "dumb", "XDG_CACHE_HOME": str(home)}
        # No `pty.fork`: what is forked of a process with threads may hang before it is the command.
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *COMMAND, *args],
            env={**os.environ, **changed},
            stdin=inside,
            stdout=inside,
            stderr=inside,
        )
        os.close(inside)
        self._seen = b""

    def until(self, pattern: str) -> str:
        """What is shown next, up to a pattern."""
        while (found := re.search(pattern.encode(), self._seen)) is None:
            assert select.select([self._file], [], [], 120)[0], self._seen
            self._seen += os.read(self._file, 1 << 16)
        shown, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return shown.decode().replace("\r", "")

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def answer(self, text: str) -> str:
        """What is shown after a line, before the next prompt."""
        self.type(f"{text}\n")
        return self.until(">>> $").partition("\n")[2].removesuffix("\n>>> ")

    def end(self) -> int:
        """Types Ctrl-D; the exit status."""
        self.type("\x04")
        status = self._process.wait(120)
        os.close(self._file)
        return status


def test_a_chat(server: Server, tmp_path: Path) -> None:
    chat = Terminal(
        *("chat", "--endpoint", server.endpoint, "-m", "pie", "--temperature", "0.2"), home=tmp_path
    )
    assert "pie-tiny; /help tells" in chat.until(">>> $")
    first = chat.answer("What is two plus two?")
    assert first
    numbers = r"(\d+) tokens, .* of the (\d+) before them (\d+) were in KV pages, and (\d+) were"
    facts = re.search(numbers, chat.answer("/stats"))
    assert facts is not None
    count, before, _, _ = map(int, facts.groups())
    assert chat.answer('"""\ntwo\nlines\n"""')
    facts = re.search(numbers, chat.answer("/stats"))
    assert facts is not None
    _, after, kept, read = map(int, facts.groups())
    # Only the new message was read.
    assert (kept + read, kept) == (after, before + count)
    assert "/stats" in chat.answer("/help")
    assert "begins and ends" in chat.answer("/help")
    unknown = chat.answer("/blah")
    assert all(word in unknown for word in ("no command /blah", "/stats", "/save"))
    file = tmp_path / "said.json"
    assert "messages are in" in chat.answer(f"/save {file}")
    said = json.loads(file.read_text())
    assert [one["role"] for one in said[:2]] == ["user", "assistant"]
    assert (said[1]["content"], said[2]["content"]) == (first.strip(), "two\nlines")
    assert "a new conversation" in chat.answer("/clear")
    chat.type("Write a story about a dog called Max.\n")  # which takes a hundred words
    chat.until(r"called Max\.\r?\n+.")
    chat.type("half a line\x03")  # stops the answer and not the chat
    assert "half a line" not in chat.until("stands at the prompt")
    chat.until(">>> half a line$")
    chat.type("\x03")
    chat.until(">>> $")
    assert "a new conversation" in chat.answer("/system You are a pirate.")
    assert chat.answer("/system") == "You are a pirate."
    assert chat.end() == 0
    assert "What is two plus two?" in (tmp_path / "pie_py/chat_history").read_text()
    piped = typed(server, f"{'word ' * 40_000}\nHello\n/exit\n", "chat")
    assert "have room" in piped.stdout
    assert piped.stdout.count("error") == 1
    assert piped.returncode == 0
    assert ">>>" not in piped.stdout


def test_an_answer_is_stopped_and_stays_as_far_as_it_came(server: Server) -> None:
    with server.client() as client:
        program = client.upload(Path(__file__).parents[2] / "inferlets/chat/main.py", "chat")
        chat = client.launch(program, ["--max-tokens", "100000", "--temperature", "2"])
        chat.send("Count.")
        assert chat.receive()
        chat.send("/stop")
        while chat.receive():
            pass
        chat.send("/stats")
        stats = chat.receive()
        assert isinstance(stats, str)
        assert int(stats.split()[0]) < 1000
        chat.send("")
        assert chat.receive() == ""
        chat.result()


def test_a_question(server: Server, tmp_path: Path) -> None:
    piped = asked(server, "The sky is blue.\n", "ask", "What", "colour?", "--max-tokens", "9")
    assert (piped.returncode, bool(piped.stdout.strip())) == (0, True), piped.stderr
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"enum": ["red", "blue"]}))
    shaped = asked(server, None, "ask", "-n", "3", "--json-schema", str(schema), "- which?")
    assert len(shaped.stdout.splitlines()) == 3, shaped.stderr
    assert {json.loads(line) for line in shaped.stdout.splitlines()} <= {"red", "blue"}
    several = asked(server, None, "ask", "--json", "-n", "2", "--max-tokens", "5", "x")
    found = json.loads(several.stdout)
    assert (len(found["answers"]), found["model"]) == (2, "pie-tiny")
    assert all(0 < tokens <= 5 for tokens in found["tokens"])
    schema.write_text(json.dumps({"type": "string", "maxLength": 60}))
    shape = ("--json-schema", str(schema), "--max-tokens", "8", "--temperature", "1", "--seed", "1")
    some = asked(server, None, "ask", "-n", "12", *shape, "--json", "x")
    whole = json.loads(some.stdout)
    assert 0 < len(whole["answers"]) == len(whole["tokens"]) < 12
    assert f"{12 - len(whole['answers'])} of 12 answers are no whole JSON" in some.stderr
    schema.write_text(json.dumps({"type": "string", "minLength": 400}))
    cut = asked(server, None, "ask", "--json-schema", str(schema), "--max-tokens", "5", "x")
    assert cut.returncode == 1
    assert "no whole JSON after 5 tokens" in cut.stderr
    picture = asked(server, None, "ask", "--image", str(schema), "x")
    assert picture.stderr.rstrip().endswith("error: pie-tiny reads no images")
    assert asked(server, None, "ask").returncode == 2
    for text, status, said in (
        ("{bad", 2, "is no JSON: "),
        ("[]", 2, "is no JSON object"),
        ("caf\udce9", 2, "not a text in UTF-8 (byte 3)"),
        ('{"type": "foo"}', 1, "foo"),
    ):
        schema.write_bytes(text.encode(errors="surrogateescape"))
        wrong = asked(server, None, "ask", "--json-schema", str(schema), "x")
        assert (wrong.returncode, said in wrong.stderr) == (status, True), wrong.stderr
    for data in (b"caf\xe9", b"\x89PNG\r\n\x1a\n\xff"):
        command = [*COMMAND, "ask", "--endpoint", server.endpoint, "What?"]
        binary = subprocess.run(command, input=data, capture_output=True, timeout=120)
        assert (binary.returncode, b"not a text in UTF-8" in binary.stderr) == (2, True)
    latin = asked(server, None, "ask", "--system", "caf\udce9", "x")
    assert "'caf\\udce9' is not a text in UTF-8" in latin.stderr
    long_text = asked(server, "word " * 40_000, "ask", "x")
    assert "tokens, and pie-tiny reads" in long_text.stderr
    wrong = asked(server, None, "ask", "-m", "gpt", "x")
    assert "no model is called 'gpt'; served there: pie-tiny" in wrong.stderr


@pytest.mark.nightly
def test_an_answer_that_goes_round_is_stopped(server: Server, tmp_path: Path) -> None:
    looping = "a a a a a a"  # which this model goes on with, greedy
    plain = asked(server, None, "ask", "--temperature", "0", looping)
    assert (plain.returncode, set(plain.stdout)) == (0, {"a", "\n"}), plain.stdout[-99:]
    assert "went round and round" in plain.stderr
    assert "--temperature" in plain.stderr
    two = asked(server, None, "ask", "--json", "-n", "2", "--temperature", "0", looping)
    found = json.loads(two.stdout)
    assert found["went_round"] == [True, True]
    assert max(found["tokens"]) < 1024
    other = asked(server, None, "ask", "--json", "--temperature", "0", "Tell me a story")
    assert json.loads(other.stdout)["went_round"] == [False]
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "string", "pattern": "^(once upon a time )*$"}))
    shaped = asked(server, None, "ask", "--temperature", "0", "--json-schema", str(schema), looping)
    assert (shaped.returncode, "went round" in shaped.stderr) == (1, True), shaped.stderr
    talked = typed(server, f"{looping}\n", "chat", "--temperature", "0")
    assert "[it went round and round" in talked.stdout, talked.stderr


def test_lines_of_standard_input_are_messages(server: Server, tmp_path: Path) -> None:
    receiver = str(server.folder / "receiver.py")
    done = typed(server, "a\n- b\nlast, without an end", "run", receiver)
    assert json.loads(done.stdout) == ["a", "- b", "last, without an end"], done.stderr
    assert json.loads(typed(server, "a\n", "run", receiver, "--n", "2").stdout) == ["a", ""]
    for text in ("a\n", None):
        short = typed(server, text, "run", receiver)
        assert short.returncode == 1
        assert "waits for a message, and standard input has ended" in short.stderr
    for command in (["run", "--endpoint", server.endpoint, receiver], ["ask"]):
        with open("/dev/zero", "rb") as endless:
            told = subprocess.run([*COMMAND, *command], stdin=endless, stderr=-1, timeout=60).stderr
        assert b"more than 64 MiB" in told
    example = str(Path(__file__).parents[2] / "examples/chat_loop.py")
    talked = typed(server, "Hello\n", "run", example)
    assert (talked.returncode, talked.stdout.endswith("1 turns\n")) == (0, True), talked.stderr
    # What ends while more could be typed does not wait for it.
    reading, writing = os.pipe()
    os.write(writing, b"one\n")
    command = [*COMMAND, "run", "--endpoint", server.endpoint, receiver, "--n", "1"]
    with os.fdopen(reading) as stdin:
        assert subprocess.check_output(command, stdin=stdin, timeout=60) == b'["one"]\n'
    os.close(writing)
    file = tmp_path / "lines"
    file.write_text("x\ny\nz\n")
    with file.open() as stdin:
        assert subprocess.check_output(command[:-2], stdin=stdin, timeout=60).count(b"z") == 1
    # A program that receives nothing leaves standard input to others.
    script = 'read first; "$@" < /dev/stdin > /dev/null; cat'
    hello = [*COMMAND, "run", "--endpoint", server.endpoint, "chat", "--help"]
    shell = ["sh", "-c", script, "sh", *hello]
    assert subprocess.check_output(shell, input=b"1\n2\n3\n", timeout=60) == b"2\n3\n"


def test_messages_are_sent_to_an_instance(server: Server) -> None:
    asked(server, None, "upload", str(server.folder / "receiver.py"))
    instance = asked(server, None, "launch", "--detach", "receiver").stdout.strip()
    assert asked(server, None, "send", instance, "- one").returncode == 0
    assert asked(server, None, "send", instance).returncode == 2
    attached = typed(server, "two\nthree\n", "attach", instance)
    assert json.loads(attached.stdout) == ["- one", "two", "three"], attached.stderr


def test_the_help_of_a_program(server: Server) -> None:
    helped = asked(server, None, "run", "chat", "--help")
    assert "--max-tokens" in helped.stdout
    assert "pie-py run --help" in helped.stderr
    assert "TARGET" in asked(server, None, "run", "--help").stdout
