"""Every program and command that a page of the documentation shows does what the page says."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.doc_scripts import DOCS
from support.rust_components import use_toolchain
from support.servers import Server

from pie_cluster.machines.settings import ClusterConfig
from pie_py.build.rust import build_crate
from pie_py.config.server import ServerConfig
from pie_py.testing.plugin import replaying

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRELUDE = """\
from inferlet import Context, DeviceSampler, Grammar, Model, Sampler

async def main():
    ctx = Context(Model.load()).fill("Once")
"""
# How each Python block is run: as a program with these arguments, as a part of one, as a script of
# a client, or (why) elsewhere.
HOW: dict[str, list[object]] = {
    "python-sdk": [[""], "part", "part", "part"],
    "http": ["test_http: the gateway's tests use this client", ['{"model": "replay", "messages": "'
             '[{\\"role\\": \\"user\\", \\"content\\": \\"Hi\\"}]"}']],
    "functions": ["script"],
    "async-function-calling": ["needs a model that calls: tests/async_calling", "imports"],
    "interception": ["a signature"],
    "cluster": ["needs a cluster: tests/cluster"],
}  # fmt: skip
STORY = ("index", "debugging")  # pages whose files and commands belong together


def blocks(page: str, language: str) -> list[str]:
    """A page's blocks of a language."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [code for kind, code in BLOCK.findall(text) if kind == language]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        with Server(folder, **replaying(folder)) as running:
            yield running


def test_every_python_block_is_run() -> None:
    pages = {page.stem: len(blocks(page.stem, "python")) for page in DOCS.glob("*.md")}
    told = {page: len(how) for page, how in HOW.items()}
    assert {page: n for page, n in pages.items() if n and page not in STORY} == told


def programs() -> Iterator[tuple[str, str]]:
    """Every Python program that a reader may copy, with where it stands."""
    root = DOCS.parent
    page = root / "gateway/pie_gateway/page/files/write.js"
    yield page.name, page.read_text(encoding="utf-8").split("`")[1]
    for path in (root / "README.md", *DOCS.glob("*.md"), *root.glob("inferlets/**/*.md")):
        for kind, code in BLOCK.findall(path.read_text(encoding="utf-8")):
            if kind == "python":
                yield str(path.relative_to(root)), code
    for pattern in ("inferlets/**/*.py", "examples/*.py", "pie_py/cli/templates/**/*.py"):
        for path in root.glob(pattern):
            yield str(path.relative_to(root)), path.read_text(encoding="utf-8")


def _in_turn(code: str) -> Iterator[str]:
    """Loops over contexts or generators that wait for what the model writes of one after another.

    A loop that awaits a generation of its own variable could have started all of them.
    """
    ends = {"collect_text", "collect_tokens", "collect_json", "send_text", "distribution"}
    for loop in ast.walk(
        compile(code, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ):
        match loop:
            case ast.For(target=ast.Name(id=name), body=body):
                inside: list[ast.AST] = list(body)
            case ast.ListComp(elt=part, generators=[ast.comprehension(target=ast.Name(id=name))]):
                inside = [part]
            case _:
                continue
        for node in (node for part in inside for node in ast.walk(part)):
            if (
                isinstance(node, ast.Await)
                and any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))
                and any(
                    isinstance(one, ast.Attribute) and one.attr in ends for one in ast.walk(node)
                )
            ):
                yield ast.unparse(node)


def test_no_program_awaits_its_forks_in_turn() -> None:
    assert list(_in_turn("[await one.collect_text() for one in forks]"))
    found = list(programs())
    assert len(found) > 60
    assert not [(place, code) for place, text in found for code in _in_turn(text)]


@pytest.mark.parametrize("page", HOW)
def test_python(server: Server, page: str) -> None:
    for code, how in zip(blocks(page, "python"), HOW[page], strict=True):
        match how:
            case list():
                _launch(server, code, [str(one) for one in how])
            case "part":
                _launch(server, PRELUDE + textwrap.indent(code, "    "), [])
            case "script":
                _script(server, code)
            case "imports":
                _imports(code)
            case _:
                compile(code, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _launch(server: Server, code: str, args: list[str]) -> None:
    with server.client() as client:
        client.launch(client.upload(code.encode(), "snippet"), args).result(60)


def _script(server: Server, code: str) -> None:
    # `Client.local()` uses the server that runs; this one is at another endpoint.
    environment = {**os.environ, "PIE_PY_ENDPOINT": server.endpoint}
    done = _run_file(code.replace("Client.local()", "Client()"), environment)
    assert done.returncode == 0, done.stderr


def _run_file(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")  # functions that travel need a source
        path.write_text(code)
        command = [sys.executable, str(path)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _imports(code: str) -> None:
    """Everything that it imports is there."""
    lines = [line for line in code.splitlines() if line.startswith(("from ", "import "))]
    assert lines
    library = DOCS.parent / "inferlets/async_function_calling"
    program = "\n".join(line for line in lines if "inferlet import" not in line)
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.module:
            path = library / (node.module.replace(".", "/") + ".py")
            assert path.is_file(), node.module
            for name in node.names:
                assert re.search(rf"(class|def) {name.name}\b", path.read_text()), name.name


# What the names in the Rust page's table of calls are.
TYPES = {
    "n": "usize", "k": "u32", "tokens": "Vec<u32>", "draft": "Vec<u32>", "path": "Vec<usize>",
    "continuations": "Vec<Vec<u32>>", "a": "usize", "b": "usize", "close": "bool", "name": "&str",
    "places": "Vec<usize>", "shared": "bool", "time": "std::time::Duration", "priority": "i32",
    "model": "&Model",
}  # fmt: skip


def _functions_of_the_table() -> Iterator[str]:
    """A function around each call on a context that the Rust page's table of calls has."""
    text = (DOCS / "rust-sdk.md").read_text(encoding="utf-8")
    calls = re.findall(r"^\| `([cC]ontext(?:\.|::)[^`]+)`", text, re.MULTILINE)
    assert len(calls) > 10
    for number, call in enumerate(calls):
        types = TYPES if "join" not in call else {"a": "Context", "b": "Context"}
        given = "".join(
            f", {name}: {of}" for name, of in types.items() if re.search(rf"\b{name}\b(?!\()", call)
        )
        yield (
            f"#[allow(unused_mut)]\npub async fn call_{number}(mut context: Context{given})"
            f" -> Result<()> {{\n    let _ = {call};\n    Ok(())\n}}\n"
        )


@pytest.mark.slow
def test_rust(tmp_path: Path) -> None:
    """The program of the Rust page, with the page's fragment in it, is built from its manifest."""
    use_toolchain()
    program, fragment = blocks("rust-sdk", "rust")
    program += "".join(_functions_of_the_table())
    [manifest] = [one for one in blocks("rust-sdk", "toml") if "[package]" in one]
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(manifest)
    more = (
        "pub async fn part(mut context: Context) -> Result {\n"
        + fragment
        + "let _ = texts;\nOk(())\n}\n"
    )
    (tmp_path / "src/lib.rs").write_text(program + "use inferlet::join_all;\n" + more)
    assert build_crate(tmp_path, tmp_path / "out.wasm").stat().st_size < 200_000


def test_toml() -> None:
    parts = [one for page in DOCS.glob("*.md") for one in blocks(page.stem, "toml")]
    configured = [tomllib.loads(one) for one in parts if "[package]" not in one]
    assert len(configured) > 2
    for one in configured:
        if one.keys() & {"server", "host", "autoscale"}:
            ServerConfig(**ClusterConfig(**one).server)
        elif "patch" not in one:
            ServerConfig(**one)


@pytest.mark.slow
def test_the_story_of_the_first_pages(tmp_path: Path) -> None:
    """Files are written, and commands run, in the order in which a reader does it."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name, Server(Path(name)) as server:
        environment = {**os.environ, "PIE_PY_ENDPOINT": server.endpoint}
        ran = 0
        for page in STORY:
            text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
            for kind, code in BLOCK.findall(text):
                named = re.match(r"# (\w+\.py)\n", code)
                if kind == "python" and named:
                    (tmp_path / named[1]).write_text(code)
                if kind == "python" and named and named[1] == "call.py":
                    _succeeds([sys.executable, "call.py"], tmp_path, environment)
                for line in code.splitlines() if kind == "sh" else ():
                    _command(line, tmp_path, environment)
                    ran += 1
        assert ran > 5


def _command(line: str, folder: Path, environment: dict[str, str]) -> None:
    words = shlex.split(line, comments=True)
    assert words[0] == "pie-py", line
    if "--record" in words:  # starts a server of its own
        environment = {k: v for k, v in environment.items() if k != "PIE_PY_ENDPOINT"}
    if words[1] == "test":
        words += ["-p", "no:pie_py", "-p", "pie_py.testing.plugin", "-p", "no:cacheprovider"]
    _succeeds([sys.executable, "-m", "pie_py", *words[1:]], folder, environment)


def _succeeds(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert done.stdout.strip(), command
