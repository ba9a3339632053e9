"""`pie-py doctor`: what is there, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from pie_py.cli.connect import EXIT_FAILED, json_option
from pie_py.cli.console import alive, table
from pie_py.config.processes import python_command

COLUMNS = {"what": "WHAT", "state": "STATE", "found": "FOUND", "mend": "HOW TO GET IT"}
LITTLE_DISK = 2 << 30  # bytes; a model and its cache want more


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `state` is ok, missing (optional), or bad (needed)."""

    what: str
    state: str
    found: str
    mend: str = ""


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Say what this installation has, what it lacks, and how to get it.

    The exit status is 1 if something is bad: a server would not start, or not work.
    """
    with alive():
        findings = [asdict(finding) for look in LOOKS for finding in look()]
    table(findings, COLUMNS, as_json)
    sys.exit(EXIT_FAILED if any(one["state"] == "bad" for one in findings) else 0)


def _versions() -> Iterator[Finding]:
    from pie_py.cli import version_text

    python = ".".join(map(str, sys.version_info[:3]))
    fits = (3, 11) <= sys.version_info[:2] < (3, 15)
    yield Finding("Python", "ok" if fits else "bad", python, "" if fits else "Python 3.11 to 3.14")
    yield Finding("pie_py", "ok", version_text())
    for requirement in importlib.metadata.requires("pie-py") or ():
        name = requirement.split(";")[0]
        if "extra ==" not in requirement:
            yield from _package(name)


def _package(requirement: str) -> Iterator[Finding]:
    """A dependency that is not as it should be."""
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    try:
        found = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        yield Finding(wanted.name, "bad", "-", f"pip install '{requirement}'")
        return
    if not wanted.specifier.contains(found, prereleases=True):
        yield Finding(wanted.name, "bad", found, f"pip install '{requirement}'")


def _device() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("PyTorch", "bad", "-", "pip install torch")
        return
    import torch

    yield Finding("PyTorch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")
    command = python_command("-m", "pie_inference.layers.native")
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    there, found = json.loads(told.stdout) if told.returncode == 0 else (False, "they do not load")
    mend = "" if there else "a C compiler, as cc"
    yield Finding("CPU kernels", "ok" if there else "missing", found, mend)
    if torch.cuda.is_available():
        yield Finding("GPU", "ok", torch.cuda.get_device_name())
        yield _optional("FlashInfer", "flashinfer", "pip install 'pie-py[cuda]'")
    else:
        why = "PyTorch has no CUDA" if torch.version.cuda is None else "no GPU, or no driver"
        yield Finding("GPU", "missing", why, "not needed: the CPU serves; see docs/cuda.md")


def _toolchains() -> Iterator[Finding]:
    from pie_py.build import BuildError
    from pie_py.build.javascript import OLDEST_NODE, find_node
    from pie_py.build.rust import TARGET, check_compiler

    yield Finding(
        "Python to Wasm", "ok", f"componentize-py {importlib.metadata.version('componentize-py')}"
    )
    try:
        if shutil.which("cargo") is None:
            raise BuildError("Cargo is not installed")
        yield Finding("Rust to Wasm", "ok", check_compiler())
    except BuildError as error:
        found = str(error).partition(":")[0].partition(".")[0]
        mend = f"https://rustup.rs, then: rustup target add {TARGET}; for Rust inferlets only"
        yield Finding("Rust to Wasm", "missing", found, mend)
    try:
        node = find_node()
        yield Finding("JavaScript to Wasm", "ok", f"Node.js {node.version}, {node.npm[-1]}")
    except BuildError as error:
        found = str(error).partition(".\n")[0]
        mend = f"Node.js {OLDEST_NODE} and npm, or: pip install 'pie-py[js]'; for JavaScript only"
        yield Finding("JavaScript to Wasm", "missing", found, mend)
    yield _optional("telemetry", "opentelemetry.sdk", "pip install 'pie-py[telemetry]'")


def _folders() -> Iterator[Finding]:
    from pie_py.build.runtimes import RUNTIMES
    from pie_py.cli.server_config import server_config
    from pie_py.config.keys import KeyStore

    try:
        config = server_config()
    except click.UsageError as error:
        yield Finding("settings", "bad", error.message, "change or unset the variable")
        return
    for what, folder in (("data folder", config.data_folder), ("cache", config.cache_folder)):
        there = next(one for one in (folder, *folder.parents) if one.exists())
        free = shutil.disk_usage(there).free
        if not (there.is_dir() and os.access(there, os.W_OK)):
            yield Finding(what, "bad", f"{folder} can't be written", f"chown, or another {what}")
        elif free < LITTLE_DISK:
            yield Finding(what, "bad", f"{folder}, {free >> 20} MiB free", "free some disk")
        else:
            yield Finding(what, "ok", f"{folder}, {free >> 30} GiB free")
    for what, kind, by_itself in (
        ("Python", "python", "; a server builds it with the first source"),
        ("JavaScript", "javascript", "; the first `run` on this machine does"),
    ):
        built = RUNTIMES[kind].runtime_file(config.cache_folder).is_file()
        found = "built" if built else "not built yet"
        mend = "" if built else f"pie-py build --runtime {kind}{by_itself}"
        yield Finding(f"{what} runtime", "ok", found, mend)
    users = len(KeyStore(config.data_folder).users())
    yield Finding("keys", "ok", f"{users} users", "" if users else "pie-py keys add USER")


def _ports() -> Iterator[Finding]:
    from pie_py.config.endpoint import DEFAULT_ENDPOINT, BadEndpoint, answers, parse_endpoint

    endpoint = os.environ.get("PIE_PY_ENDPOINT") or DEFAULT_ENDPOINT
    try:
        runs = answers(parse_endpoint(endpoint))
    except BadEndpoint as error:
        yield Finding("PIE_PY_ENDPOINT", "bad", str(error), "change or unset it")
    else:
        yield Finding(
            "server",
            "ok" if runs else "missing",
            f"answers at {endpoint}" if runs else f"none at {endpoint}",
            "" if runs else "pie-py serve; `pie-py run` starts one by itself",
        )
    key = os.environ.get("PIE_PY_KEY")
    if key is not None and not Path(key).is_file():
        yield Finding("PIE_PY_KEY", "bad", f"{key} is no file", "unset it, or name a key file")


def _optional(what: str, module: str, mend: str) -> Finding:
    try:
        there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        there = False
    return Finding(what, "ok", "installed") if there else Finding(what, "missing", "-", mend)


LOOKS = (_versions, _device, _toolchains, _folders, _ports)
