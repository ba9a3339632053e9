"""Rust crates to components.

Cargo compiles the crate for `wasm32-unknown-unknown`; the SDK comes from this installation,
whatever folder the crate lies in; `pie_py.build.component` wraps the result.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pie_py.build import BuildError, run_tool, sdk_folder
from pie_py.build.component import ComponentError, make_component, without_lines
from pie_py.config.kept_files import cache_folder
from pie_py.config.shipped_files import shipped_folder
from pie_py.config.whole_files import write_whole

_PACKAGE = Path(__file__).resolve().parents[1]
TARGET = "wasm32-unknown-unknown"
# For small and fast code that keeps the functions' names and lines, for the texts of traps. A
# crate's own `[profile.release]` comes first.
PROFILE = {
    "opt-level": '"s"',
    "lto": "true",
    "panic": '"abort"',
    "codegen-units": "1",
    "debug": '"line-tables-only"',
    "strip": '"none"',
}
HOW_TO_MEND = f"""\
Install Rust with rustup and add the target:
    rustup target add {TARGET}
or name a compiler that has it in the environment variable RUSTC."""


def build_crate(
    folder: Path, output: Path, sdk: Path | None = None, *, lines: bool = False
) -> Path:
    """Builds a crate that uses the SDK (`inferlet = "0.1"`) and writes the component.

    Without network it works for crates whose other dependencies have been fetched; the SDK needs
    none.

    Args:
        folder: the crate, which holds `Cargo.toml`. Cargo's own files go to its `target` folder, or
            to the user's cache for the inferlets that pie_py ships, unless `CARGO_TARGET_DIR` says
            otherwise.
        output: the component's file; its folder is made, an old file is replaced at once.
        sdk: the folder of the crate `inferlet`; this installation's by default.
        lines: whether the component has its source lines, for traps: it is ten times as large.

    Returns:
        `output`.

    Raises:
        BuildError: no Cargo, no compiler for Wasm, an error in the crate, or a module that is no
            inferlet.
    """
    folder = folder.resolve()
    if not (folder / "Cargo.toml").is_file():
        raise BuildError(f"{folder} is no Rust crate: it has no Cargo.toml")
    cargo = os.environ.get("CARGO") or shutil.which("cargo")
    if cargo is None:
        raise BuildError(f"Cargo is not installed, so {folder} can't be built.\n{HOW_TO_MEND}")
    check_compiler(folder)
    module = _compile(cargo, folder, sdk or sdk_folder("rust") / "inferlet")
    core = module.read_bytes()
    try:
        component = make_component(core if lines else without_lines(core))
    except ComponentError as error:
        raise BuildError(f"{folder}: {error}") from None
    write_whole(output, component, mode=0o644)
    return output


def check_compiler(folder: Path | None = None) -> str:
    """Cargo's compiler in a folder. Raises `BuildError`: none, or without a library for Wasm."""
    rustc = os.environ.get("RUSTC", "rustc")
    try:
        asked = run_tool([rustc, "--print", "sysroot"], folder)
    except OSError as error:
        raise BuildError(f"the Rust compiler can't be run: {error}.\n{HOW_TO_MEND}") from None
    if asked.returncode:
        raise BuildError(f"the Rust compiler does not work: {asked.stderr.strip()}")
    library = Path(asked.stdout.strip(), "lib", "rustlib", TARGET, "lib")
    if not any(library.glob("libstd-*.rlib")):
        raise BuildError(
            f"the Rust compiler {rustc} can't compile to WebAssembly: no standard library for "
            f"{TARGET} in {library}.\n{HOW_TO_MEND}"
        )
    return rustc


def _compile(cargo: str, folder: Path, sdk: Path) -> Path:
    """The core module of a crate."""
    patch = ["--config", f"patch.crates-io.inferlet.path={json.dumps(str(sdk))}"]
    common = ["--manifest-path", str(folder / "Cargo.toml"), *patch]
    # With the network allowed, Cargo asks the registry even for crates that are patched.
    offline = ["--offline"]
    known = run_tool([cargo, "metadata", "--format-version=1", *common, *offline], folder)
    if known.returncode:
        offline = []
        known = run_tool([cargo, "metadata", "--format-version=1", *common], folder)
    if known.returncode:
        raise BuildError(f"Cargo refuses {folder}:\n{known.stderr.strip()}")
    root = Path(json.loads(known.stdout)["workspace_root"])

    command = [cargo, "build", "--release", "--lib", "--target", TARGET, *common, *offline]
    command += ["--message-format=json-render-diagnostics", *_profile(root / "Cargo.toml")]
    shipped = any(folder.is_relative_to(own) for own in (shipped_folder("inferlets"), _PACKAGE))
    if shipped and "CARGO_TARGET_DIR" not in os.environ:
        # The crate lies in the installation: nothing is written there.
        command += ["--target-dir", str(cache_folder() / "cargo")]
    built = run_tool(command, folder)
    if built.returncode:
        raise BuildError(f"{folder} does not compile:\n{built.stderr.strip()}")
    modules = list(_modules(built.stdout, folder))
    if not modules:
        raise BuildError(
            f"{folder} gives no WebAssembly module. Its Cargo.toml needs\n"
            '    [lib]\n    crate-type = ["cdylib"]'
        )
    return modules[-1]


def _profile(manifest: Path) -> Iterator[str]:
    """Options of `PROFILE`, as far as the manifest leaves them open."""
    own: dict[str, Any] = tomllib.loads(manifest.read_text(encoding="utf-8-sig"))
    chosen = own.get("profile", {}).get("release", {})
    for key, value in PROFILE.items():
        if key not in chosen:
            yield from ("--config", f"profile.release.{key}={value}")


def _modules(messages: str, folder: Path) -> Iterator[Path]:
    manifest = folder / "Cargo.toml"
    for line in messages.split("\n"):  # strings in JSON may have other ends of lines
        if not line.startswith("{"):
            continue  # what a macro has printed
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and Path(message["manifest_path"]) == manifest:
            yield from (Path(name) for name in message["filenames"] if name.endswith(".wasm"))
