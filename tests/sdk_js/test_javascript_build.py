"""JavaScript and TypeScript programs from disk to what the server takes; the tools that build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_py.build import BuildError, javascript
from pie_py.build.javascript_modules import read_javascript
from pie_py.build.modules import read_program
from pie_py.cli import doctor, main
from pie_py.client.errors import ClientError
from pie_py.client.sync import Client
from pie_py.wire.javascript import MARK, pack, unpack
from pie_py.wire.modules import BadProgram

HERE = Path(__file__).parent
NAMES = st.from_regex(
    r"([A-Za-z0-9_][a-z.-]{0,4}/){0,2}[A-Za-z0-9_][a-z.-]{0,4}\.(js|mjs|ts)", fullmatch=True
)
TEXTS = st.binary(max_size=40).filter(lambda text: b"\0" not in text)


@settings(max_examples=40)
@given(st.dictionaries(NAMES, TEXTS, min_size=1, max_size=5))
def test_unpack_is_the_inverse_of_pack(modules: dict[str, bytes]) -> None:
    data = pack(modules)
    assert unpack(data) == modules
    assert next(iter(unpack(data))) == next(iter(modules))


@given(st.binary(max_size=60) | st.binary(max_size=60).map(MARK.__add__))
def test_what_is_no_program_is_refused(data: bytes) -> None:
    try:
        modules = unpack(data)
    except BadProgram:
        return
    assert pack(modules) == data


def test_modules_are_found_wherever_they_are_imported(tmp_path: Path) -> None:
    files = {
        "app.js": "import { a } from './lib/a.js';\nimport './side';\nimport(\"./later.mjs\");",
        "lib/a.ts": "export * from '../b';",
        "b.ts": "export const b = 1;",
        "side/index.js": "import x from 'inferlet'; // import './no/such/thing",
        "later.mjs": "// import old from './old.js';\n/* from './older'\n * from './oldest' */",
        "unrelated.js": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_javascript(tmp_path / "app.js")
    assert set(found) == set(files) - {"unrelated.js"}
    assert next(iter(found)) == "app.js"
    assert set(read_javascript(tmp_path / "lib" / "a.ts")) == {"lib/a.ts", "b.ts"}
    (tmp_path / "main.ts").write_text("import './gone.js'")
    with pytest.raises(BadProgram, match=r"main.ts imports './gone.js', and there is no such"):
        read_program(tmp_path)


def test_modules_run_together(client: Client, tmp_path: Path) -> None:
    """Of both languages, in circles, with `await` outside of functions in the main one."""
    (tmp_path / "main.js").write_text(
        "import odd, * as all from './odd.js';\nconst late = await import('./even');\n"
        "export async function main(args) { return [odd(5), late.even(4), Object.keys(all)]; }"
    )
    (tmp_path / "odd.ts").write_text(
        "import { even } from './even.js';\n"
        "export default function odd(n: number): boolean { return n > 0 && even(n - 1); }"
    )
    (tmp_path / "even.js").write_text(
        "import odd from './odd';\nexport const even = (n) => n === 0 || odd(n - 1);"
    )
    assert json.loads(client.launch(client.upload(tmp_path)).result()) == [True, True, ["default"]]


def test_what_is_uploaded_is_checked(client: Client) -> None:
    with pytest.raises(ClientError, match="neither Wasm nor a JavaScript source in UTF-8"):
        client.upload(pack({"a.js": b"export const main = 1; \xff"}), name="a")
    with pytest.raises(ClientError, match="no list of modules"):
        client.upload(MARK + b"a.js", name="a")
    with pytest.raises(ClientError, match="cannot be a module's path"):
        client.upload(MARK + b"../a.js\0x", name="a")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_component_of_its_own(client: Client, tmp_path: Path) -> None:
    """With a module beside it, and a package from `node_modules`; evaluated when it runs."""
    package = tmp_path / "node_modules" / "twice"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "twice", "version": "1.0.0", "main": "i.js"}')
    (package / "i.js").write_text("module.exports = (text) => text + text;")
    (tmp_path / "words.ts").write_text("export const ending: string = '!';")
    (tmp_path / "app.ts").write_text(
        "import { Context, Model, session } from 'inferlet';\nimport twice from 'twice';\n"
        "import { ending } from './words';\nconst model: Model = Model.load();\n"
        "export async function main(args: string[]) {\n"
        "  const context = new Context(model).fill(args[0]);\n"
        "  await context.generate(undefined, { maxTokens: 4 }).sendText();\n"
        "  return twice(args[0]) + ending;\n}\n"
    )
    output = tmp_path / "made" / "app.wasm"
    done = CliRunner().invoke(main, ["build", str(tmp_path / "app.ts"), "-o", str(output)])
    assert done.exit_code == 0, done.output
    instance = client.launch(client.upload(output), ["The capital"])
    assert "".join(map(str, instance)) == " of Thesse"
    assert instance.result() == "The capitalThe capital!"


@pytest.mark.usefixtures("client")
def test_a_build_that_fails_says_where(tmp_path: Path) -> None:
    (tmp_path / "app.ts").write_text("import x from 'nowhere';\nexport const main = () => x +;\n")
    done = CliRunner().invoke(main, ["build", str(tmp_path / "app.ts")])
    assert done.exit_code == 1
    assert "app.ts:2:30: Unexpected" in done.output


def test_the_runtimes_of_past_versions_leave_the_cache(tmp_path: Path) -> None:
    kept, past = javascript.runtime_file(tmp_path), tmp_path / "javascript-runtime-0.wasm"
    for each in (kept, past):
        each.write_bytes(b"")
        os.utime(each, (0, 0))
    assert javascript.runtime_component(tmp_path) == kept
    assert list(tmp_path.iterdir()) == [kept]


@pytest.fixture
def no_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without Node.js."""
    monkeypatch.setattr(javascript, "_candidates", lambda: iter(()))
    javascript.find_node.cache_clear()
    yield
    javascript.find_node.cache_clear()


@pytest.mark.usefixtures("no_node")
def test_without_node_it_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no usable Node.js(.|\n)*pip install 'pie-py\[js\]'"):
        javascript.runtime_component(tmp_path)
    [told] = [one for one in doctor._toolchains() if one.what == "JavaScript to Wasm"]
    assert told.state == "missing"
    assert "pie-py[js]" in told.mend


def test_packages_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(BuildError, match="npm's registry has to be reached once"):
        javascript.runtime_component(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("client")
def test_types(tmp_path: Path) -> None:
    """Of the SDK, of the template, of the library's programs, and of the guests here."""
    for file in (HERE / "types").iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    node = javascript.find_node()
    subprocess.run([*node.npm, "ci", "--loglevel=error"], cwd=tmp_path, check=True, timeout=120)
    done = subprocess.run(
        [node.node, str(tmp_path / "node_modules/typescript/bin/tsc"), "-p", str(HERE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
