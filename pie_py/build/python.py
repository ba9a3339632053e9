"""Python programs to components: the runtime that runs source files, and self-contained ones."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

from pie_py.build import BuildError, run_tool, sdk_folder
from pie_py.build.image import make_immortal
from pie_py.build.modules import imports_in, read_modules, read_program
from pie_py.config.kept_files import used
from pie_py.config.processes import python_command
from pie_py.config.shipped_files import shipped_folder
from pie_py.config.temporary import TemporaryFolder
from pie_py.config.whole_files import locked, put_in_place
from pie_py.wire.modules import MARK, BadProgram, pack

_RUNTIME_APP = '''\
from inferlet._guest import component, known, source

for file, text in {known!r}:
    known.add(file, text)


class WitWorld(source.Runner):
    """The component's exports."""


component.seal(source.rehearse)
'''

_PROGRAM_APP = '''\
"""A program with the packages it needs."""

import importlib

from inferlet._guest import component, program

for name in {required!r}:
    importlib.import_module(name)
for name in {optional!r}:
    try:
        importlib.import_module(name)
    except BaseException:  # a part of a package that wants something else to be there
        pass


class WitWorld(component.Runner):
    def program(self, args):
        return program.prepare({file!r}, {source!r})[0], args


component.seal()
'''


_NOT_MODULES = ("tests", "test", "__main__", "conftest")  # of a package, not imported


def runtime_component(cache_folder: Path, progress: Callable[[str], None] | None = None) -> Path:
    """The component that runs Python source files, built unless it is in the cache folder, which is
    made if need be. `progress` is told in a sentence what takes time.

    It is found by the content of the SDK, the contract and the version of componentize-py. Of two
    that need it at once, one builds it and the other waits. Raises `BuildError` if componentize-py
    fails.
    """
    target = runtime_file(cache_folder)
    if target.parent != cache_folder:
        return target
    if target.is_file():
        return used(target, "python-runtime-*.wasm")
    if progress is not None:
        progress("building the Python runtime (once, about 10 s)")
    cache_folder.mkdir(parents=True, exist_ok=True)
    with locked(cache_folder), TemporaryFolder() as folder:
        if not target.is_file():  # another may have built it
            found = []
            for main in sorted(shipped_folder("inferlets").glob("*/*.py")):
                program = read_program(main).decode()
                if program.startswith(MARK.decode()):
                    found.append((f"{main.parent.name}.py", program))
            app = _RUNTIME_APP.format(known=found)
            _componentize(folder, "source-runtime", app, [], target)
    return target


def runtime_file(cache_folder: Path) -> Path:
    """Where the component that runs sources is: the package's own, or in the cache, once built."""
    digest = hashlib.sha256(f"{version('componentize-py')}\n{_RUNTIME_APP}\n".encode())
    made_from = [(sdk_folder("python"), "**/*.py", 1), (shipped_folder("wit"), "**/*.wit", 1)]
    # Of the library all files of programs that may have several modules: to find out which of them
    # have takes longer than all else before a program runs.
    made_from += [(each, "**/*.py", 2) for each in sorted(shipped_folder("inferlets").iterdir())]
    for folder, pattern, least in made_from:
        files = sorted(folder.glob(pattern))
        for file in files if len(files) >= least else ():
            content = file.read_bytes()
            digest.update(f"{file.relative_to(folder)} {len(content)}\n".encode() + content)
    name = f"python-runtime-{digest.hexdigest()[:24]}.wasm"
    shipped = shipped_folder("runtimes") / name
    return shipped if shipped.is_file() else cache_folder / name


def build_component(source: Path, packages: list[str], output: Path) -> Path:
    """Builds a self-contained component from a Python file and the packages it uses.

    Args:
        source: the program's main module, or a folder that has a `main.py`; the modules beside it
            that it imports are put in, too.
        packages: what pip is to install for it, such as `jinja2` or `markdown==3.7`; pure Python
            only.
        output: the component's file.

    Returns:
        `output`.

    Raises:
        BuildError: if a module is not Python or lies outside of the folder, a package is not pure
            Python or can't be had, or an import finds nothing.
    """
    try:
        modules = read_modules(source)
        text = pack(modules).decode("utf-8")
        trees = [ast.parse(module, path) for path, module in modules.items()]
    except OSError as error:
        raise BuildError(f"{source}: {error.strerror}") from None
    except BadProgram as error:
        raise BuildError(str(error)) from None
    except (SyntaxError, ValueError) as error:
        raise BuildError(f"{source} is not Python: {error}") from None
    with TemporaryFolder() as folder:
        site = folder / "site"
        if packages:
            _install(packages, site)
        app = _PROGRAM_APP.format(
            required=sorted(_outside(modules, trees)),
            optional=sorted(_modules(site)),
            file=f"{source.absolute().stem}.py",
            source=text,
        )
        output.parent.mkdir(parents=True, exist_ok=True)
        _componentize(folder, "inferlet", app, [site] if packages else [], output)
    return output


def _componentize(folder: Path, world: str, app: str, paths: list[Path], target: Path) -> None:
    """Runs componentize-py over an app module, and puts the component in place in one step."""
    stage = folder / "stage"
    stage.mkdir()
    shutil.copytree(
        sdk_folder("python"), stage / "inferlet", ignore=shutil.ignore_patterns("__pycache__")
    )
    (stage / "pie_app.py").write_text(app, encoding="utf-8")
    made = stage / "component.wasm"
    command = python_command(
        *("-c", "import sys, componentize_py; sys.exit(componentize_py.script())"),
        *("--wit-path", str(shipped_folder("wit")), "--world", world),
        *("componentize", "--stub-wasi", "pie_app", "--output", str(made)),
    )
    for path in (stage, *paths):
        command += ["--python-path", str(path)]
    # componentize-py searches an active virtual environment too; nothing of it belongs in here.
    environment = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    done = run_tool(command, stage, environment)
    if done.returncode != 0 or not made.is_file():
        raise BuildError(_reason(done.stderr or done.stdout))
    made.write_bytes(make_immortal(made.read_bytes()))
    put_in_place(made, target)


def _reason(output: str) -> str:
    """The part of componentize-py's output that a user can do something about."""
    lines = [line for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if "ModuleNotFoundError" in line:
            return (
                f"{line.strip()} (neither the standard library of the runtime nor the packages have"
                " it; name what is missing with --package)"
            )
    # A native backtrace follows the reason.
    stop = next((n for n, line in enumerate(lines) if "Stack backtrace" in line), len(lines))
    return "componentize-py failed:\n" + "\n".join(lines[:stop][-40:])


def _install(packages: list[str], site: Path) -> None:
    """Installs pure-Python wheels into a folder."""
    done = run_tool(
        python_command(
            *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-input", "--no-compile", "--target", str(site), "--only-binary", ":all:"),
            *("--platform", "any", "--python-version", "3.14", "--implementation", "py"),
            *packages,
        )
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise BuildError(
            f"{', '.join(packages)} can't be installed as pure Python: {last} (only packages with"
            " pure-Python wheels, in their name `none-any`, run in an inferlet)"
        )
    compiled = [f.name for f in site.rglob("*") if f.suffix in (".so", ".pyd", ".dylib")]
    if compiled:
        raise BuildError(
            f"{', '.join(packages)} has compiled parts ({', '.join(sorted(compiled)[:3])}), which"
            " can't run in an inferlet; use a pure-Python package"
        )


def _outside(own: Iterable[str], trees: Iterable[ast.Module]) -> set[str]:
    """Names of the modules that a program imports, wherever in it, but for its `own` ones."""
    tops = {path.removesuffix(".py").partition("/")[0] for path in own}
    names = {name for tree in trees for name in imports_in(tree)}
    return {name for name in names if name.partition(".")[0] not in tops}


def _modules(site: Path) -> Iterable[str]:
    """All modules of the installed packages, but for their tests and entry points."""
    for file in site.rglob("*.py"):
        parts = file.relative_to(site).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        skipped = any(p in _NOT_MODULES or not p.isidentifier() for p in parts)
        if parts and not skipped:
            yield ".".join(parts)
