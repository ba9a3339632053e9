"""Rust inferlets for tests and benchmarks, built from source when first asked for."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pie_py.build import BuildError
from pie_py.build.rust import build_crate, check_compiler
from pie_py.config.kept_files import cache_folder

REPOSITORY = Path(__file__).resolve().parents[2]
BUILT = cache_folder() / "test-components"  # of all checkouts: their names are of what they hold
KEPT_SECONDS = 30 * 86_400
CRATES = {
    "bench": REPOSITORY / "benchmarks" / "guests" / "rust",
    "http_answer": REPOSITORY / "inferlets" / "http_answer" / "rust",
    "guests": REPOSITORY / "tests" / "rust_guests",
    "device_guests": REPOSITORY / "tests" / "device_guests",
    "outside_guests": REPOSITORY / "tests" / "outside_guests",
    "control_guests": REPOSITORY / "tests" / "control_guests",
    "image_guests": REPOSITORY / "tests" / "image_guests",
    "conformance": REPOSITORY / "tests" / "conformance" / "rust",
    "memory_guests": REPOSITORY / "tests" / "memory_guests",
    "sample_guests": REPOSITORY / "tests" / "sample_guests",
    "text_completion": REPOSITORY / "inferlets" / "text_completion" / "rust",
}
# A fixture that runs a component by its name here: its messages joined, and its result.
Run = Callable[..., tuple[str, str]]
TOOLCHAIN = "RUSTC", "PATH", "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER"


@cache
def rust_component(name: str) -> Path:
    """The component of a crate.

    It is kept by a hash of all that goes into it, so that a second run builds nothing.
    """
    crate = CRATES[name]
    output = BUILT / f"{name}-{sources_hash(crate)}.wasm"
    if not output.is_file():
        use_toolchain()
        for old in BUILT.glob(f"{name}-*.wasm"):
            if time.time() - old.stat().st_mtime > KEPT_SECONDS:
                old.unlink(missing_ok=True)
        build_crate(crate, output)
    return output


@cache
def use_toolchain() -> None:
    """Makes sure that this process has a Rust compiler for Wasm, as CI does."""
    os.environ.setdefault("CARGO_TARGET_DIR", str(REPOSITORY / "target" / "rust"))
    try:
        check_compiler()
    except BuildError:
        shown = "; ".join(f'printf "%s\\n" "${{{name}-}}"' for name in TOOLCHAIN)
        script = subprocess.run(
            ["sh", "-c", f". .ci/rust-toolchain; {shown}"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for name, value in zip(TOOLCHAIN, script.stdout.splitlines(), strict=True):
            if value:
                os.environ[name] = value


def sources_hash(crate: Path) -> str:
    """A hash of all that goes into a crate's component, but for the compiler."""
    digest = hashlib.sha256()
    folders = [crate, REPOSITORY / "sdk" / "rust", REPOSITORY / "sdk" / "wit"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    files += [
        REPOSITORY / "pie_py" / "build" / name for name in ("rust.py", "component.py", "wit.py")
    ]
    for path in sorted(files):
        if "target" not in path.relative_to(REPOSITORY).parts:
            digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
