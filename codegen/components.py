"""Builds the Rust inferlets of the library that travel as components, so that users need no
compiler: `python -m codegen.components [--check]`.

The same compiler makes the same bytes wherever the checkout lies: Cargo's names and the places that
panics tell depend on the sources' path, so they are built from a copy in a folder that is the same
everywhere.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from codegen.source import REPOSITORY
from pie_py.build.rust import build_crate, check_compiler

# Each component, and its crate.
COMPONENTS: Mapping[str, str] = {
    "inferlets/http_answer/http_answer.wasm": "inferlets/http_answer/rust"
}
COMPILER = "inferlets/rustc.txt"  # the version that built them

_FOLDER = Path("/tmp/pie-py-components")


def build(crate: Path) -> bytes:
    """A crate's component, the same bytes for the same sources and compiler.

    Raises:
        BuildError: no compiler, or an error in the crate.
    """
    with _alone():
        shutil.copytree(crate, _FOLDER / "program", ignore=_no_targets)
        shutil.copytree(REPOSITORY / "sdk/rust", _FOLDER / "sdk", ignore=_no_targets)
        before = os.environ.pop("CARGO_TARGET_DIR", None)
        try:
            output = _FOLDER / "component.wasm"
            return build_crate(_FOLDER / "program", output, _FOLDER / "sdk/inferlet").read_bytes()
        finally:
            if before is not None:
                os.environ["CARGO_TARGET_DIR"] = before


@contextmanager
def _alone() -> Iterator[None]:
    """The folder, empty, and no other build in it."""
    with _FOLDER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(_FOLDER, ignore_errors=True)
        _FOLDER.mkdir(mode=0o700)
        try:
            yield
        finally:
            shutil.rmtree(_FOLDER)


def compiler() -> str:
    """The version of the Rust compiler at hand."""
    command = [check_compiler(), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _no_targets(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "target"}


def main() -> None:
    """Builds all, or only says which ones are not what their sources build (status 1 then)."""
    parser = argparse.ArgumentParser(prog="python -m codegen.components")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    check = parser.parse_args().check
    stale = {
        path: data
        for path, data in ((path, build(REPOSITORY / crate)) for path, crate in COMPONENTS.items())
        if not (REPOSITORY / path).is_file() or (REPOSITORY / path).read_bytes() != data
    }
    for path, data in stale.items():
        if not check:
            (REPOSITORY / path).write_bytes(data)
        print(f"{path} is stale" if check else f"wrote {path}")
    if not check:
        (REPOSITORY / COMPILER).write_text(compiler() + "\n")
    sys.exit(bool(stale) and check)


if __name__ == "__main__":
    main()
