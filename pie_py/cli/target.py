"""The target of `run` and `build`: a source, component, crate, or library folder."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click

from pie_py.build.javascript_modules import MAINS, main_of
from pie_py.build.library import DESCRIPTION
from pie_py.build.modules import MAIN, read_program
from pie_py.cli.console import progress
from pie_py.config.shipped_files import shipped_folder
from pie_py.config.temporary import TemporaryFolder
from pie_py.wire import javascript
from pie_py.wire.modules import BadProgram


class BadTarget(click.BadParameter):
    """Nothing that can be run; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that can be run or built."""

    kind: Literal["python", "javascript", "component", "crate"]
    path: Path  # a file, or the folder of a crate or of a Python program
    name: str
    # By a model's source, folders of LoRAs by their names: what a server that is started for it
    # gives a model which has none.
    adapters: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)


def find_target(text: str, entry: str | None = None) -> Target | None:
    """Finds what a path or a library inferlet's name means; None if it is neither. Raises
    `BadTarget` if it is a path to something else, or has no such entry.
    """
    path = Path(text)
    if not path.exists():
        library = shipped_folder("inferlets") / text
        if "/" in text or not any((library / name).is_file() for name in (DESCRIPTION, MAIN)):
            if path.suffix in (".py", ".wasm", *javascript.ENDINGS) or "/" in text:
                raise BadTarget(f"{text} does not exist")
            return None
        path = library
    if path.is_dir() and (path / DESCRIPTION).is_file():
        return _described(path, entry)
    if entry is not None:
        raise BadTarget(f"--entry chooses in a folder with {DESCRIPTION}; {text} has none")
    return _plain(path, path.stem if path.is_file() else path.resolve().name)


def program_bytes(path: Path, read: Callable[[Path], bytes] = read_program) -> bytes:
    """A source program or a component, as it is uploaded, read by a function like `read_program`.
    Raises `BadTarget` if a file can't be read, or the modules make no program.
    """
    try:
        return read(path)
    except OSError as error:
        raise BadTarget(f"{error.filename or path} cannot be read: {error.strerror}") from None
    except BadProgram as error:
        raise BadTarget(str(error)) from None


def target_bytes(
    target: Target, read: Callable[[Path], bytes] = read_program, *, lines: bool = False
) -> bytes:
    """A target as it is uploaded; a crate is built first, with its source lines or without. Raises
    `BadTarget`: as `program_bytes`. Raises `BuildError`: the crate does not build.
    """
    if target.kind != "crate":
        return program_bytes(target.path, read)
    from pie_py.build.rust import build_crate

    with TemporaryFolder() as folder, progress(f"building {target.path}"):
        output = folder / f"{target.name}.wasm"
        return build_crate(target.path, output, lines=lines).read_bytes()


def _plain(path: Path, name: str) -> Target:
    if path.is_dir():
        if (path / "Cargo.toml").is_file():
            return Target("crate", path, name)
        if (path / MAIN).is_file():
            return Target("python", path, name)
        if main := main_of(path):
            return Target("javascript", main, name)
        raise BadTarget(
            f"{path} has neither {DESCRIPTION} nor Cargo.toml nor {MAIN} nor {' nor '.join(MAINS)}:"
            " no inferlet is in it"
        )
    if not path.is_file():  # a pipe would be waited for
        raise BadTarget(f"{path} is neither a file nor a folder")
    magic = _read(path, 4)
    if path.suffix == ".py":
        return Target("python", path, name)
    if path.suffix in javascript.ENDINGS:
        return Target("javascript", path, name)
    if magic == b"\0asm":
        return Target("component", path, name)
    raise BadTarget(
        f"{path} is neither a Python source (.py), nor JavaScript or TypeScript (.js, .mjs, .ts),"
        " nor a WebAssembly component"
    )


def _read(path: Path, most: int = -1) -> bytes:
    """A file's first bytes, or all. Raises BadTarget if it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise BadTarget(f"{path} cannot be read: {error.strerror}") from None


def _described(folder: Path, entry: str | None) -> Target:
    file = folder / DESCRIPTION
    try:
        described = tomllib.loads(_read(file).decode("utf-8-sig"))
        entries, name = described["entries"], described["name"]
    except ValueError as error:  # also of a number with thousands of digits
        raise BadTarget(f"{file}: {error}") from None
    except KeyError as error:
        raise BadTarget(f"{file} has no {error.args[0]!r}") from None
    if not isinstance(name, str):
        raise BadTarget(f'{file}: name is {name!r}, which is no text; write name = "NAME"')
    if not isinstance(entries, dict):
        raise BadTarget(
            f"{file}: entries is {entries!r}, which is no table; write [entries] and below it"
            ' python = "PATH"'
        )
    for entry_name, where in entries.items():
        if not isinstance(where, str):
            raise BadTarget(
                f"{file}: entry {entry_name} is {where!r}, which is no text; write"
                f' {entry_name} = "PATH"'
            )
    chosen = entry or next(iter(entries), None)
    if chosen is None or chosen not in entries:
        raise BadTarget(f"{file} has no entry {chosen!r}; there are {', '.join(entries) or 'none'}")
    path = folder / entries[chosen]
    if not path.exists():
        raise BadTarget(f"{file}: entry {chosen} names {entries[chosen]}, which does not exist")
    target = _plain(path, name if chosen == next(iter(entries)) else f"{name}-{chosen}")
    return replace(target, adapters=_adapters(file, described.get("adapters", {})))


def _adapters(file: Path, described: Any) -> dict[str, dict[str, Path]]:
    try:
        found = {
            model: {name: file.parent / folder for name, folder in folders.items()}
            for model, folders in described.items()
        }
    except (AttributeError, TypeError):
        raise BadTarget(
            f"{file}: adapters is {described!r}; write [adapters.MODEL] and below it"
            ' NAME = "FOLDER"'
        ) from None
    for folders in found.values():
        for folder in folders.values():
            if not folder.is_dir():
                raise BadTarget(f"{file}: adapters name {folder}, which is no folder")
    return found
