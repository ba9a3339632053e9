"""Every block of code of the documents is run, in the order in which a reader comes to it.

Each page has a folder of its own and shares a server, which the README's `pie-py serve` has
started. Lines of a shell go to bash; files are written before; a configuration is read as `serve`
does it. `OTHERWISE` names the blocks for which that is not enough, and `NOT_HERE` the few that this
machine cannot run, with the reason.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.documents import PERSON, Reader, without_the_server
from support.javascript import require_javascript
from support.rust_components import use_toolchain
from support.shown_blocks import ROOT, Block, blocks, pages

from pie_cluster.machines.settings import ClusterConfig
from pie_control.interception.policy import preserve
from pie_py.cli.server_config import server_config
from pie_py.config.server import ServerConfig

LIBRARY = "inferlets/"  # its pages are run by tests/inferlets/test_library_commands.py

# What measures takes minutes or hours: test_documented_commands.py sees to the options.
MEASURES = re.compile(r"(PYTHONPATH=tests )?python -m (benchmarks|conformance)\b")

# Blocks that no part of this suite runs: page, the text that they have, and why.
NOT_HERE = (
    ("docs/cuda.md", "[cuda]", "needs a GPU"),
    ("docs/cuda.md", "FLASHINFER_CUDA", "needs nvcc, and half an hour"),
    ("docs/operating.md", "systemctl", "needs systemd; test_packaging_files does the rest"),
    ("docs/operating.md", "podman", "needs a container engine; test_packaging_files has its steps"),
    ("docs/rust-sdk.md", "rustup", "needs rustup; .ci/rust-toolchain does without it"),
    ("examples/pie_tiny/README.md", "runs", "trains for an hour"),
    ("examples/cml_lora/README.md", "runs", "trains for hours; test_cml_adapters trains shortly"),
    ("examples/grpo/README.md", "runs", "trains for minutes; test_grpo_example trains shortly"),
)  # fmt: skip

# Blocks that another test runs: page, a text of theirs, and the test.
ELSEWHERE = (
    ("README.md", "./check", "tests/test_documents.py::test_ci_runs_the_check"),
    ("CONTRIBUTING.md", "./check", "tests/test_documents.py::test_ci_runs_the_check"),
    ("README.md", "-m venv", "tests/test_documents.py::test_the_installation"),
    ("docs/index.md", "-m venv", "tests/test_documents.py::test_the_installation"),
    ("docs/python-sdk.md", "--package", "tests/sdk_python/test_sdk_build.py::test_a_component_"),
    ("docs/async-function-calling.md", "-m smollm2", "tests/inferlets/test_library_real_model.py"
     "::test_a_model_that_has_learnt_"),
    ("docs/running.md", "pie-py rm", "tests/cli/test_pull.py::test_what_is_there_is_listed"),
    ("docs/models.md", "lora_name", "tests/gateway/test_checkpoints.py::test_a_lora_adapter_"),
    ("docs/models.md", "update_weights", "tests/end_to_end/test_weights.py::test_nothing_of_the_"),
    ("docs/rust-sdk.md", "join_all", "tests/test_documents.py::in_the_crate"),
    ("docs/durable.md", "kill -9", "tests/durable/test_own_page.py::test_the_page_is_true"),
    ("docs/durable.md", "pie-py branch", "tests/durable/test_own_page.py::test_the_page_is_true"),
    ("docs/cuda.md", "simulated_gpu", "tests/inference/test_on_simulated_gpu.py::test_"),
    ("docs/cluster.md", "pie-py[cluster]", "tests/cluster/test_cluster_page.py::test_one_machine"),
    ("docs/cluster.md", "10.0.0.1:7743 --token", "tests/cluster/test_cluster_page.py::test_sev"),
    ("docs/cluster.md", "up --address auto", "tests/cluster/test_foreign_ray.py::test_it_has_"),
    ("docs/cluster.md", "durable=True", "tests/cluster/test_durable_nodes.py::test_an_instance_"),
    ("client/README.md", "pie-py-client", "tests/test_packaging.py::test_the_client_alone"),
    ("tests/conformance/README.md", "pytest", "tests/conformance/test_coverage.py::test_"),
)  # fmt: skip

PROGRAM = """\
from inferlet import Context, Grammar, Model, Sampler, http


async def main(url: str = ""):
    ctx = Context(Model.load()).fill("Once")
"""
TOOLS_AND_REQUEST = ("@tools.json", "Hi")
REQUEST = json.dumps({"model": "pie-tiny", "messages": '[{"role": "user", "content": "Hi"}]'})


@dataclass
class Page:
    """A reader of one page, and the addresses of a gateway and of a site that programs may ask."""

    reader: Reader
    gateway: str
    site: str

    def script(self, block: Block) -> str:
        """What a Python script prints; one that awaits is the body of a coroutine."""
        code = block.code.replace("http://127.0.0.1:8000", self.gateway)
        code = code.replace("Client.local()", "Client()")  # which looks at the default endpoint
        try:
            compile(code, "", "exec")
        except SyntaxError:
            body = textwrap.indent(code, "    ")
            code = f"import asyncio\nasync def main():\n{body}\nasyncio.run(main())\n"
        self.reader.writes("script.py", code)
        return self.reader.types("python script.py")

    def printing(self, block: Block) -> None:
        """A script that says behind each `print` what it shows."""
        shown = re.findall(r"print\(.*\)  # (.+)", block.code)
        assert shown == self.script(block).splitlines()

    def program(self, block: Block, args: tuple[str, ...] = ()) -> None:
        """A program in Python, or what stands in its main function."""
        code = block.code
        if "def main" not in code:
            code = PROGRAM + textwrap.indent(code, "    ")
        self.reader.writes("program.py", code)
        given = shlex.join(arg.replace("SITE", self.site) for arg in args)
        self.reader.types(f"pie-py run program.py -- {given}")

    def in_typescript(self, block: Block) -> None:
        """What stands in a main function in TypeScript."""
        code = 'import { parseArgs } from "inferlet";\nexport async function main(args: string[]) {'
        self.reader.writes("fragment.ts", f"{code}\n{block.code}\nreturn prompt + maxTokens;\n}}\n")
        assert self.reader.types("pie-py run fragment.ts -- --prompt Once") == "Once64\n"

    def signature(self, block: Block) -> None:
        """Of policies of interception."""
        assert str(inspect.signature(preserve)).replace("'", "") in block.code

    def described(self, block: Block) -> None:
        """The description of a program with several entries."""
        source = ROOT / "inferlets/text_completion"
        folder = self.reader.folder / "described"
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("target"))
        self.reader.writes("described/inferlet.toml", block.code)
        assert self.reader.types('pie-py run described --prompt "The capital of"')


# Blocks that are parts of something, by page and a text of theirs: what to do with them.
OTHERWISE: tuple[tuple[str, str, Callable[[Page, Block], object]], ...] = (
    ("docs/functions.md", "Client.local", Page.script),
    ("docs/http.md", "OpenAI(", Page.script),
    ("docs/http.md", "json.loads(args", partial(Page.program, args=(REQUEST,))),
    ("docs/async-function-calling.md", "client.answer", Page.printing),
    ("docs/async-function-calling.md", "load_tools", partial(Page.program, args=TOOLS_AND_REQUEST)),
    ("docs/device-programs.md", "from inferlet import", Page.program),
    ("docs/interception.md", "with interception", partial(Page.program, args=("--url", "SITE"))),
    ("docs/interception.md", "def decide", Page.signature),
    ("docs/python-sdk.md", "Sampler(", Page.program),
    ("docs/python-sdk.md", "collect_json(schema)", Page.program),
    ("docs/python-sdk.md", "choose=", Page.program),
    ("docs/javascript-sdk.md", "parseArgs", Page.in_typescript),
    ("docs/running.md", "[entries]", Page.described),
)  # fmt: skip


def rules() -> Iterator[tuple[str, str, object]]:
    """Page, text, and how, of all blocks that are not run as they stand."""
    yield from (*NOT_HERE, *ELSEWHERE, *OTHERWISE)


def rule_of(block: Block) -> object | None:
    """How a block is run, or why not; None: as it stands."""
    if block.kind == "sh" and MEASURES.match(block.code):
        return "measures"
    found = [how for page, text, how in rules() if page == block.page and text in block.code]
    assert len(found) < 2, block
    return found[0] if found else None


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]


def test_every_block_has_a_way_to_be_run() -> None:
    found = all_blocks()
    unknown = [
        str(block)
        for block in found
        if block.kind not in ("sh", "toml", "json", "text")
        and block.file is None
        and rule_of(block) is None
    ]
    assert not unknown, "say in OTHERWISE how it is run, or name its file in its first line"
    for page, text, how in rules():
        assert any(block.page == page and text in block.code for block in found), (page, text)
        if isinstance(how, str) and "::" in how:
            file, _, test = how.partition("::")
            assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), how
    assert len(NOT_HERE) < 10, "what is shown and never run is believed by no one"


class Site(BaseHTTPRequestHandler):
    """Answers every request."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, str]]:
    """The endpoint and the HTTP address of the server that the README starts."""
    [serve] = re.findall(r"^(pie-py serve) ", (ROOT / "README.md").read_text(), re.MULTILINE)
    with tempfile.TemporaryDirectory(prefix="pie-") as place:
        endpoint = f"ipc://{place}/s"
        reader = Reader(Path(place), PIE_PY_DATA_FOLDER=f"{place}/data", PIE_PY_SPARE_INSTANCES="2")
        allowed = "--allow-http '127.0.0.1:*' --allow-http-network 127.0.0.0/8"
        process = subprocess.Popen(
            ["bash", "-c", f"exec {serve} --endpoint {endpoint} --http 127.0.0.1:0 {allowed}"],
            env=reader.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            told = ""
            while "ready at" not in told:
                line = process.stderr.readline()
                assert line, told
                told += line
            threading.Thread(target=process.stderr.read, daemon=True).start()
            [gateway] = re.findall(r"HTTP at (http\S+)", told)
            yield endpoint, gateway.rstrip("/")
        finally:
            process.terminate()
            assert process.wait(30) == 0


@pytest.fixture
def page(server: tuple[str, str], site: str, tmp_path: Path) -> Page:
    endpoint, gateway = server
    environment = {
        "PIE_PY_ENDPOINT": endpoint,
        "PIE_PY_DATA_FOLDER": str(tmp_path / "data"),
        "CALENDAR_TOKEN": "secret",
        "SEARCH_TOKEN": "secret",
    }
    (tmp_path / "work").mkdir()
    return Page(Reader(tmp_path / "work", **environment), gateway, site)


def told_pages() -> list[str]:
    """Pages with a block that this file runs."""
    ours = {b.page for b in all_blocks() if not isinstance(rule_of(b), str)}
    return sorted(page for page in ours if not page.startswith((LIBRARY, "pie_py/cli/templates")))


# What a newcomer reads; the other pages have the night, and the changes of a day.
FIRST_READ = ("README.md", "docs/python-sdk.md", "docs/http.md")


def at_night(names: list[str], *first: str) -> list[object]:
    """Parameters of which some run in every run, and the others nightly."""
    night = pytest.mark.nightly
    return [name if name in first else pytest.param(name, marks=night) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", at_night(told_pages(), *FIRST_READ))
def test_a_page_does_what_it_says(name: str, page: Page, request: pytest.FixtureRequest) -> None:
    found = list(blocks(name))
    for block in found:
        if block.file is not None:
            page.reader.writes(block.file, block.code)
    prepare(name, page.reader, request)
    for block in found:
        how = rule_of(block)
        if callable(how):
            how(page, block)
        elif how is None:
            as_it_stands(page, block)


def as_it_stands(page: Page, block: Block) -> None:
    """Shell, files and configurations."""
    reader = page.reader
    if block.kind == "sh":
        gateway = page.gateway.removeprefix("http://")
        reader.types(without_the_server(block.code.replace("localhost:8000", gateway)))
    elif block.kind == "json":
        json.loads(block.code)
    elif block.kind == "toml" and block.file in (None, "pie.toml"):
        reader.writes("read.toml", block.code)
        server_config(reader.folder / "read.toml")
    elif block.file == "cluster.toml":
        ServerConfig(**ClusterConfig(**tomllib.loads(block.code)).server)
    elif block.file is not None and block.file.startswith("call"):  # from another process
        assert reader.types(f"python {block.file}")


def prepare(name: str, reader: Reader, request: pytest.FixtureRequest) -> None:
    """What a page takes for granted."""
    match name.removeprefix("docs/").removesuffix(".md"):
        case "README":
            assert next(blocks(name)).code.count("\n") == 1
        case "index":
            request.getfixturevalue("smollm2")
        case "debugging":
            copied("docs/index.md", "surer.py", reader)
        case "http":
            copied("README.md", "best_word.py", reader)
        case "running":
            request.getfixturevalue("smollm2")
            (reader.folder / "inferlets").symlink_to(ROOT / "inferlets")
            reader.environment["TMPDIR"] = str(request.getfixturevalue("short_folder"))
            reader.writes("README.md", "Thessel is a country.\n")
            reader.writes("person.json", PERSON)
            reader.writes("my_inferlet.py", MY_INFERLET)
            reader.writes("my_inferlet/main.py", MY_INFERLET)
        case "operating":
            reader.writes("pie.toml", f'data_folder = "{reader.folder / "data"}"\n')
        case "async-function-calling":
            reader.writes("tools.json", TOOLS)
            library = ROOT / "inferlets/async_function_calling"
            shutil.copytree(library / "asynclm", reader.folder / "asynclm")
        case "device-programs":
            require_javascript()
            use_toolchain()
            manifest = ROOT / "inferlets/text_completion/rust/Cargo.toml"
            reader.writes("surprised/Cargo.toml", manifest.read_text())
        case "javascript-sdk":
            require_javascript()
        case "rust-sdk":
            use_toolchain()
            in_the_crate(reader.folder / "hello/src/lib.rs")


def copied(page: str, file: str, reader: Reader) -> None:
    """Writes a file that another page has."""
    [block] = [block for block in blocks(page) if block.file == file]
    reader.writes(file, block.code)


MY_INFERLET = "async def main(width: int = 4):\n    return width\n"
TOOLS = json.dumps(
    [
        {
            "name": name,
            "parameters": {"properties": {what: {"type": "string"}}, "required": [what]},
            "run": {"kind": "simulated", "seconds": 0.1, "result": "done"},
        }
        for name, what in (("fetch_weather", "city"), ("send_mail", "text"))
    ]
)


# What the names in the Rust page's table of calls are.
TYPES = {
    "n": "usize", "k": "u32", "tokens": "Vec<u32>", "draft": "Vec<u32>", "path": "Vec<usize>",
    "continuations": "Vec<Vec<u32>>", "a": "usize", "b": "usize", "close": "bool", "name": "&str",
    "places": "Vec<usize>", "shared": "bool", "time": "std::time::Duration", "priority": "i32",
    "model": "&Model",
}  # fmt: skip


def in_the_crate(source: Path) -> None:
    """Adds to the Rust page's program a function around its fragment, and one around each call on a
    context that its table has.
    """
    text = (ROOT / "docs/rust-sdk.md").read_text(encoding="utf-8")
    calls = re.findall(r"^\| `([cC]ontext(?:\.|::)[^`]+)`", text, re.MULTILINE)
    assert len(calls) >= 5
    [fragment] = [b.code for b in blocks("docs/rust-sdk.md") if "join_all(" in b.code]
    functions = [("", f"use inferlet::join_all;\n{fragment}let _ = texts;")]
    for call in calls:
        types = TYPES if "join" not in call else {"a": "Context", "b": "Context"}
        names = [name for name in types if re.search(rf"\b{name}\b(?!\()", call)]
        given = "".join(f", {name}: {types[name]}" for name in names)
        functions.append((given, f"let _ = {call};"))
    with source.open("a") as file:
        for number, (given, body) in enumerate(functions):
            file.write(
                f"#[allow(unused_mut)]\npub async fn part_{number}(mut context: Context{given}) ->"
                f" Result<()> {{\n{body}\nOk(())\n}}\n"
            )


@pytest.mark.slow
@pytest.mark.parametrize("language", at_night(["python", "js", "ts", "rust"], "python"))
def test_a_new_project_is_what_its_readme_says(language: str, page: Page) -> None:
    """Its test passes, it runs, again at a save, and is deployed."""
    if language in ("js", "ts"):
        require_javascript()
    use_toolchain()
    page.reader.types(f"pie-py new quick --lang {language}")
    page.reader.folder /= "quick"
    for block in blocks("pie_py/cli/templates/all/README.md"):
        page.reader.types(block.code.replace("NAME", "quick"))


@pytest.mark.nightly
def test_the_installation(smollm2: Path, tmp_path: Path) -> None:
    """The first commands, in a checkout without an environment.

    Only what pie-py depends on is not installed again: pip is told so by its own variables.
    """
    checkout = tmp_path / "pie_py"
    checkout.mkdir()
    for file in ROOT.iterdir():
        if file.name not in (".git", ".venv", "target"):
            (checkout / file.name).symlink_to(file)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(sys.executable)
    reader = Reader(
        checkout,
        PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin",
        PYTHONPATH=sysconfig.get_path("purelib"),
        PIP_NO_DEPS="1",
        PIP_NO_BUILD_ISOLATION="0",  # the name of an option turns it off, and so does a 0
        PIE_PY_DATA_FOLDER=str(tmp_path / "data"),
    )
    first, *_ = blocks("README.md")
    assert reader.types(first.code).endswith("\nThe capital of Japan is Tokyo.\n")
    reader.folder = tmp_path
    install, *_ = blocks("docs/index.md")
    clone, _, rest = install.code.partition(" && ")
    assert clone == "git clone … pie_py"  # its address is not public yet
    assert "Rust" in reader.types(rest)


def test_the_whole_configuration_has_the_defaults() -> None:
    assert server_config(ROOT / "docs/pie.toml").model_dump() == ServerConfig().model_dump()


def test_ci_runs_the_check() -> None:
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("exec ./check")


def programs() -> Iterator[tuple[str, str]]:
    """Every Python program that a reader may copy, with where it stands."""
    page = ROOT / "gateway/pie_gateway/page/files/write.js"
    yield page.name, page.read_text(encoding="utf-8").split("`")[1]
    yield from ((str(block), block.code) for block in all_blocks() if block.kind == "python")
    for pattern in ("inferlets/**/*.py", "examples/*.py", "pie_py/cli/templates/**/*.py"):
        for path in ROOT.glob(pattern):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


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
