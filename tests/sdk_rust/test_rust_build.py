"""`build_crate`, with the real compiler: crates anywhere, and every mistake a user can make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from wasmtime import Engine
from wasmtime.component import Component

from pie_py.build import BuildError
from pie_py.build.rust import HOW_TO_MEND, build_crate
from pie_py.config.shipped_files import shipped_folder

MANIFEST = """\
[package]
name = "mine"
version = "0.1.0"
edition = "2021"

[lib]
crate-type = ["cdylib"]

[dependencies]
inferlet = "0.1"
"""
# As quick to build as can be, for what does not ask for the code.
QUICK = '[profile.release]\nopt-level = 0\nlto = "off"\ncodegen-units = 16\n'
PROGRAM = """\
#[inferlet::main]
async fn main() -> &'static str {
    inferlet::info!("here");
    "done"
}
"""


@pytest.fixture
def crate(tmp_path: Path, toolchain: None) -> Path:
    """A user's crate, outside of the repository."""
    folder = tmp_path / "my crate é\u2028"  # an end of line to Python, not to Cargo
    (folder / "src").mkdir(parents=True)
    (folder / "Cargo.toml").write_text(MANIFEST + QUICK)
    (folder / "src" / "lib.rs").write_text(PROGRAM)
    return folder


def test_a_crate_outside_of_the_repository(crate: Path, tmp_path: Path) -> None:
    (crate / "Cargo.toml").write_text(MANIFEST)
    output = tmp_path / "new" / "folder" / "mine.wasm"
    assert build_crate(crate, output) == output
    first = output.read_bytes()
    engine = Engine()
    kind = Component(engine, first).type
    assert list(kind.imports(engine)) == ["pie:inferlet/runtime@0.1.0"]
    assert list(kind.exports(engine)) == ["run"]
    assert len(first) < 100_000
    # Again, with nothing changed; and reproducible.
    assert build_crate(crate, output).read_bytes() == first
    assert [path.name for path in output.parent.iterdir()] == ["mine.wasm"]


def test_a_macro_that_prints(crate: Path, tmp_path: Path) -> None:
    macros = tmp_path / "macros"
    (macros / "src").mkdir(parents=True)
    package = MANIFEST.partition("[lib]")[0].replace("mine", "says")
    (macros / "Cargo.toml").write_text(f"{package}[lib]\nproc-macro = true\n")
    (macros / "src/lib.rs").write_text(
        "use proc_macro::TokenStream;\n#[proc_macro]\n"
        'pub fn say(_: TokenStream) -> TokenStream { println!("hello"); TokenStream::new() }\n'
    )
    says = f'says = {{ path = "{macros}" }}\n'
    (crate / "Cargo.toml").write_text(MANIFEST + says + QUICK)
    (crate / "src/lib.rs").write_text(f"says::say!();\n{PROGRAM}")
    assert build_crate(crate, tmp_path / "out.wasm").is_file()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_librarys_folder_stays_clean(
    toolchain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build goes to the user's cache, which has what other tests have built."""
    built = tmp_path / "cache/pie_py/cargo"
    built.parent.mkdir(parents=True)
    built.symlink_to(os.environ["CARGO_TARGET_DIR"])
    monkeypatch.delenv("CARGO_TARGET_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = shipped_folder("inferlets") / "text_completion" / "rust"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    build_crate(folder, tmp_path / "out.wasm")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.nightly
@pytest.mark.slow
def test_the_crates_own_profile_comes_first(crate: Path, tmp_path: Path) -> None:
    large = build_crate(crate, tmp_path / "large.wasm").stat().st_size
    (crate / "Cargo.toml").write_text(MANIFEST)
    assert build_crate(crate, tmp_path / "small.wasm").stat().st_size < large


@pytest.mark.parametrize(
    "signature",
    [
        "async fn main(args: inferlet::Args) -> inferlet::Result { args.finish() }",
        'async fn main(_: Vec<String>) -> Result<(), String> { Err(String::from("no")) }',
        "pub(crate) async fn start() {}",
        "/// Documented.\n#[allow(dead_code)]\n"
        "async fn main() -> Result<&'static str, Box<dyn std::error::Error>>\n"
        '{ Ok("1".parse::<u32>().map(|_| "")?) }',
    ],
)
def test_signatures_of_main(crate: Path, tmp_path: Path, signature: str) -> None:
    (crate / "src" / "lib.rs").write_text(f"#[inferlet::main]\n{signature}\n")
    built, engine = build_crate(crate, tmp_path / "out.wasm"), Engine()
    assert list(Component(engine, built.read_bytes()).type.exports(engine)) == ["run"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("fn broken( {", "does not compile:(.|\n)*src/lib.rs:1"),
        ("#[inferlet::main]\nfn main() {}", "the function must be `async`(.|\n)*lib.rs:2"),
        ("#[inferlet::main(x)]\nasync fn main() {}", "takes no arguments"),
        ("#[inferlet::main]\nasync fn main<T>() {}", "can't be generic"),
        ("#[inferlet::main]\nstruct Main;", "goes on an `async fn`"),
        ("#[inferlet::main]\nasync fn main() -> u32 { 1 }", "IntoOutcome"),
        ("pub fn nothing() {}", r"no `run`: mark the inferlet's function with #\[inferlet::main\]"),
        (
            PROGRAM + '#[link(wasm_import_module = "env")]\nextern "C" { fn puts(); }\n'
            '#[no_mangle] pub extern "C" fn p() { unsafe { puts() } }',
            "does not offer: env puts",
        ),
    ],
)
def test_mistakes_in_the_program(crate: Path, tmp_path: Path, program: str, reason: str) -> None:
    (crate / "src" / "lib.rs").write_text(program)
    with pytest.raises(BuildError, match=reason):
        build_crate(crate, tmp_path / "out.wasm")
    assert not (tmp_path / "out.wasm").exists()


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ("[package", "Cargo refuses"),
        (MANIFEST.replace('["cdylib"]', '["rlib"]'), 'crate-type = \\["cdylib"\\]'),
        (MANIFEST.replace('inferlet = "0.1"', 'inferlet = "7"'), "Cargo refuses(.|\n)*inferlet"),
    ],
)
def test_mistakes_in_the_manifest(
    crate: Path, tmp_path: Path, manifest: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARGO_NET_OFFLINE", "true")
    (crate / "Cargo.toml").write_text(manifest)
    with pytest.raises(BuildError, match=reason):
        build_crate(crate, tmp_path / "out.wasm")


def test_no_crate(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"it has no Cargo\.toml"):
        build_crate(tmp_path, tmp_path / "out.wasm")


def test_no_cargo(crate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CARGO", raising=False)
    with pytest.raises(BuildError, match="Cargo is not installed") as error:
        build_crate(crate, crate / "out.wasm")
    assert HOW_TO_MEND in str(error.value)


def test_cargo_does_not_read_what_is_typed(crate: Path) -> None:
    cargo = crate / "cargo"
    cargo.write_text('#!/bin/sh\nread word\necho "read $word" >&2\nexit 1\n')
    cargo.chmod(0o755)
    script = "from pathlib import Path; from pie_py.build.rust import build_crate\n"
    script += f"build_crate(Path({str(crate)!r}), Path('out.wasm'))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "CARGO": str(cargo)},
        input="secret\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Cargo refuses" in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (None, "can't be run"),
        ("echo no >&2; exit 1", "does not work: no"),
        ("echo /nowhere", "no standard library for wasm32-unknown-unknown"),
    ],
)
def test_no_compiler_for_wasm(
    crate: Path, monkeypatch: pytest.MonkeyPatch, compiler: str | None, reason: str
) -> None:
    rustc = crate / "rustc"
    if compiler is not None:
        rustc.write_text(f"#!/bin/sh\n{compiler}\n")
        rustc.chmod(0o755)
    monkeypatch.setenv("RUSTC", os.fspath(rustc))
    with pytest.raises(BuildError, match=reason):
        build_crate(crate, crate / "out.wasm")
