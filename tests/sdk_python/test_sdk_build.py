"""Building components from Python."""

# ruff: noqa: E501 - programs in strings

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.sdk_rig import Rig
from support.traps import set_traps, trapped
from wasmtime import wat2wasm

from pie_py.build import BuildError, run_tool
from pie_py.build.image import Image, make_immortal
from pie_py.build.python import build_component, runtime_component
from pie_py.config.server import ServerConfig

PACKAGE = """
import textkit
from textkit.words import shout

async def main(args):
    from inferlet import Context, Model
    text = await Context(Model.load()).fill("a").generate(max_tokens=3).collect_text()
    return shout(args[0]) + textkit.MARK + text
"""


def make_wheel(
    folder: Path, tag: str = "py3-none-any", extra: dict[str, str] | None = None
) -> Path:
    """A package as pip installs it."""
    import zipfile

    wheel = folder / f"textkit-1.0-{tag}.whl"
    files = {
        "textkit/__init__.py": "MARK = '!'\n",
        "textkit/words.py": "import string\ndef shout(text): return text.upper()\n",
        "textkit/optional.py": "import numpy\n",
        "textkit-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: textkit\nVersion: 1.0\n",
        "textkit-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        **(extra or {}),
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("textkit-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return wheel


def test_only_a_component_that_lists_its_objects_has_immortal_ones() -> None:
    unlisted = wat2wasm('(component (core module (memory 1) (data (i32.const 8) "abc")))')
    with pytest.raises(ValueError, match="does not list its objects"):
        make_immortal(bytes(unlisted))


def test_the_image_is_found_by_address() -> None:
    data = '(data (i32.const 65536) "abcdef") (data (i32.const 16) "1234")'
    image = Image(bytes(wat2wasm(f"(component (core module) (core module (memory 2) {data}))")))
    found = [image.find(address) for address in (16, 17, 65538, 65539, 0)]
    assert [place is not None for place in found] == [True, False, True, False, False]
    assert found[0] is not None
    assert image.component[found[0] : found[0] + 4] == b"1234"


@pytest.mark.nightly
def test_a_component_with_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code is compiled by the compiler that is quick at it."""
    source = tmp_path / "tool.py"
    source.write_text(PACKAGE)
    wheel, output = make_wheel(tmp_path), tmp_path / "out" / "tool.wasm"
    traps = tmp_path / "here"  # where one stands, which is on no process's import path
    traps.mkdir()
    set_traps(traps)
    command = [sys.executable, "-m", "pie_py", "build", source, "-o", output, "--package", wheel]
    subprocess.run([*map(str, command)], cwd=traps, check=True)
    assert not trapped(traps)
    monkeypatch.setattr("pie_control.server.is_optimized", lambda *_: False)
    (tmp_path / "rig").mkdir()
    outcome = Rig(tmp_path / "rig", compiler="baseline").run(output.read_bytes(), "hey")
    assert outcome.ok, outcome.text
    assert outcome.text.startswith("HEY!")
    assert len(outcome.text) == 7


@pytest.mark.nightly
@pytest.mark.slow
def test_a_missing_package_is_named(tmp_path: Path) -> None:
    source = tmp_path / "tool.py"
    source.write_text("import textkit\nasync def main(): pass\n")
    with pytest.raises(BuildError, match=r"No module named 'textkit'.*--package"):
        build_component(source, [], tmp_path / "tool.wasm")
    assert not (tmp_path / "tool.wasm").exists()


def test_compiled_packages_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "tool.py"
    source.write_text("async def main(): pass\n")
    compiled = make_wheel(tmp_path, extra={"textkit/fast.so": "machine code"})
    with pytest.raises(BuildError, match=r"compiled parts \(fast.so\)"):
        build_component(source, [str(compiled)], tmp_path / "tool.wasm")
    native = make_wheel(tmp_path, "cp314-cp314-manylinux_2_17_x86_64")
    with pytest.raises(BuildError, match="pure Python: ERROR: "):
        build_component(source, [str(native)], tmp_path / "tool.wasm")


@pytest.mark.parametrize(
    ("text", "reason"), [("def main(:", "is not Python: invalid syntax"), (None, "No such file")]
)
def test_sources_that_are_none(tmp_path: Path, text: str | None, reason: str) -> None:
    source = tmp_path / "tool.py"
    if text is not None:
        source.write_text(text)
    with pytest.raises(BuildError, match=reason):
        build_component(source, [], tmp_path / "tool.wasm")


def test_the_runtime_is_built_once(rig: Rig) -> None:
    rig.run("def main(): pass")
    said: list[str] = []
    folder = ServerConfig().cache_folder
    assert runtime_component(folder, said.append).is_file()
    assert said == []


COMPONENTIZE = """
import shutil, sys, time

def script():
    with open({calls!r}, "a") as calls:
        calls.write("called\\n")
    time.sleep(0.5)  # the other one comes meanwhile
    shutil.copyfile({built!r}, sys.argv[sys.argv.index("--output") + 1])
"""


@pytest.mark.usefixtures("nothing_made")
def test_two_builders_at_once(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """componentize-py, which takes ten seconds, is called once; here it knows the outcome."""
    rig.run("def main(): pass")
    built, calls = runtime_component(ServerConfig().cache_folder), tmp_path / "calls"
    (tmp_path / "path").mkdir()
    (tmp_path / "path/componentize_py.py").write_text(
        COMPONENTIZE.format(calls=str(calls), built=str(built))
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    cache = tmp_path / "cache"
    made: list[Path] = []
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(runtime_component(cache, said.append)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert len(set(made)) == 1
    assert [f.name for f in cache.iterdir()] == [made[0].name]
    assert made[0].read_bytes() == built.read_bytes()
    assert calls.read_text() == "called\n"
    assert len(said) == 2  # both are told why they wait


def test_a_tool_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_py.build.TOOL_SECONDS", 0.2)
    with pytest.raises(BuildError, match=r"sleep has not ended within 0\.2 s"):
        run_tool(["sleep", "60"])
