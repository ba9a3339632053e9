"""The mistakes that beginners make, and what they are told: what, where, and how to mend it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import wasmtime
from support.mistakes import documented
from support.servers import Server

from pie_py.client import ClientError, sync
from pie_py.testing.script import replaying

HEAD = "from inferlet import Context, Model, Sampler\n\nasync def main():\n"
OPEN = "    context = Context(Model.load()).fill('Once')\n"

# The program, and what its author is told.
MISTAKES = {
    "no await": (
        f"{HEAD}{OPEN}    return context.generate(Sampler.argmax()).collect_text()\n",
        ["main returned the coroutine Generator.collect_text: write `await` before the call"],
    ),
    "no await, and the result unused": (
        f"{HEAD}{OPEN}    context.flush()\n    return 1 / 0\n",
        ['File "it.py", line 6, in main', "ZeroDivisionError"],  # and the log, see below
    ),
    "wrong import": (
        "import numpy as np\n\ndef main():\n    pass\n",
        ['File "it.py", line 1', "No module named 'numpy'", "pie-py build FILE.py --package NAME"],
    ),
    "a name of the SDK misspelt": (
        "from inferlet import Contxt\n",
        ['File "it.py", line 1', "cannot import name 'Contxt'", "Did you mean: 'Context'?"],
    ),
    "a method misspelt": (
        f"{HEAD}{OPEN}    return await context.genrate()\n",
        ['File "it.py", line 5, in main', "no attribute 'genrate'", "Did you mean: 'generate'?"],
    ),
    "a prompt that is too long": (
        f"{HEAD}{OPEN}    context.fill('word ' * 5000)\n"
        "    await context.generate(Sampler.argmax()).collect_text()\n",
        ['File "it.py", line 6, in main', "tokens and the model takes 2048", "shorten the prompt"],
    ),
    "pages that are never freed": (
        f"{HEAD}    kept = []\n    while True:\n"
        "        kept.append(Context(Model.load()).fill('a text ' * 50))\n"
        "        await kept[-1].flush()\n",
        ['File "it.py", line 7, in main', "an instance may hold 200", "free what is not needed"],
    ),
    "a loop that does not end": (
        "def main():\n    while True:\n        pass\n",
        ["1 s of CPU time are used up", "a loop that does not end"],
    ),
    "a wrong argument": (
        "def main(prompt: str, width: int = 4):\n    pass\n",
        ["usage: it", "the following arguments are required: --prompt"],
    ),
    "a file that is not there": (
        "def main():\n    return open('data.txt').read()\n",
        ['File "it.py", line 2, in main', "an inferlet has no file system: pass data as arguments"],
    ),
    "no main": ("print('hello')\n", ["it.py has no function `main`; write `async def main("]),
    "no Python": ("def main(:\n", ["it.py, line 1: ", "def main(:"]),
}


def test_the_page_has_all_mistakes() -> None:
    others = {"an old build", "no server"}
    assert documented("Python").keys() == MISTAKES.keys() | others
    assert all(documented("Python").values())


def missing(mistake: str, told: str) -> list[str]:
    """What the page says, and the message does not."""
    return [text for text in documented("Python")[mistake] if text not in told]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        limits = {"cpu_seconds": 1.0, "kv_pages": 200}
        with Server(Path(name), **replaying(Path(name)), limits=limits) as running:
            yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[sync.Client]:
    with server.client() as connected:
        yield connected


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_author_is_told(client: sync.Client, mistake: str) -> None:
    source, said = MISTAKES[mistake]
    with pytest.raises(ClientError) as caught:
        client.launch(client.upload(source.encode(), "it")).result()
    assert [text for text in said if text not in str(caught.value)] == [], str(caught.value)
    if "unused" not in mistake:  # is in the log, see below
        assert missing(mistake, str(caught.value)) == []


def test_a_coroutine_that_nobody_awaits_is_logged(client: sync.Client) -> None:
    source = f"{HEAD}{OPEN}    context.flush()\n    return ''\n"
    instance = client.launch(client.upload(source.encode(), "it"))
    instance.result()
    text = "\n".join(line["text"] for line in instance.logs()["lines"])
    assert missing("no await, and the result unused", text) == []


def test_an_old_build(client: sync.Client) -> None:
    """A component that was built for a function which this server does not have."""
    component = wasmtime.wat2wasm(
        '(component (import "pie:inferlet/runtime@0.1.0" (instance (export "gone" (func)))))'
    )
    with pytest.raises(ClientError) as caught:
        client.launch(client.upload(bytes(component), "old"))
    assert missing("an old build", str(caught.value)) == []


def test_no_server(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pie_py", "ps", "--endpoint", f"ipc://{tmp_path}/none"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"no server at ipc://{tmp_path}/none; `pie-py serve` starts one" in done.stderr
    assert missing("no server", done.stderr) == []
