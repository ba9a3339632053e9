"""The packages, built as they are published, installed and used outside of the checkout."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

import pytest
from support.servers import Server

from pie_py import __version__
from pie_py.build.python import runtime_component
from pie_py.config.server import ServerConfig
from pie_py.testing.script import replaying

ROOT = Path(__file__).parents[1]
MOST_CLIENT_BYTES = 15_000_000  # with all that it depends on
# Where this process finds its modules is no matter of theirs.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
HEAVY = {"torch", "numpy", "pydantic", "wasmtime", "rich", "starlette"}


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wheel_of(source: Path, folder: Path, **environment: str) -> Path:
    """Built by the hatchling that is here, as `pip wheel` calls it."""
    alone = ("--no-deps", "--no-build-isolation", "--check-build-dependencies")
    build = (sys.executable, "-m", "pip", "wheel", "-q", *alone, "-w", folder, source)
    run(*build, cwd=ROOT, **environment)
    [wheel] = folder.glob("*.whl")
    return wheel


def quick_tools(folder: Path, runtime: Path) -> dict[str, str]:
    """A compiler that does not optimize, and componentize-py's outcome, which is `runtime`."""
    (folder / "path").mkdir(parents=True)
    (folder / "path/componentize_py.py").write_text(
        "import shutil, sys\n\ndef script():\n"
        f"    shutil.copyfile({str(runtime)!r}, sys.argv[sys.argv.index('--output') + 1])\n"
    )
    compiler = folder / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o700)
    return {"CC": str(compiler), "PYTHONPATH": str(folder / "path")}


@pytest.mark.nightly
def test_the_client_alone(tmp_path: Path) -> None:
    """`pip install pie-py-client`: small, without the server, and its functions travel."""
    wheel = wheel_of(ROOT / "client", tmp_path / "wheel")
    assert __version__ in wheel.name
    place = tmp_path / "venv"
    venv.create(place)
    python = place / "bin" / "python"
    before = {path for path in place.rglob("*") if path.is_file()}
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", wheel)
    new = {path for path in place.rglob("*") if path.is_file()} - before
    assert sum(path.stat().st_size for path in new) < MOST_CLIENT_BYTES
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pie_py.client.sync import Client\n"
        f"assert not {HEAVY!r} & set(sys.modules)\n"
        "from inferlet import Context, Model, Sampler\n\n"
        "async def complete(prompt):\n"
        "    context = Context(Model.load()).fill(prompt)\n"
        "    return await context.generate(Sampler.argmax(), max_tokens=4).collect_text()\n\n"
        "with Client() as client:\n"
        "    print(repr(client.run(complete, 'Once')), client.models()[0]['name'])\n"
    )
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as name,
        Server(Path(name), **replaying(Path(name))) as server,
    ):
        told = run(python, script, cwd=tmp_path, PIE_PY_ENDPOINT=server.endpoint)
        assert told == "'' replay\n"
        command = place / "bin" / "pie-py"
        listed = run(command, "models", cwd=tmp_path, PIE_PY_ENDPOINT=server.endpoint)
        assert "replay" in listed
        hello = ROOT / "examples/hello.py"
        run(command, "upload", hello, cwd=tmp_path, PIE_PY_ENDPOINT=server.endpoint)
    for name, told in (
        ("serve", "`serve` comes with the server: pip install pie-py"),
        ("cluster", "`cluster` needs: pip install 'pie-py[cluster]'"),
    ):
        missing = subprocess.run(
            [command, name], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert missing.returncode == 2
        assert told in missing.stderr


@pytest.mark.nightly
def test_an_installed_checkout_has_what_a_first_run_would_wait_for(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    checkout = tmp_path / sdist.name.removesuffix(".tar.gz")
    runtime = runtime_component(ServerConfig().cache_folder)
    tools = quick_tools(tmp_path / "tools", runtime)
    build = (sys.executable, "-c", "import hatchling.build as b; b.build_editable('built')")
    run(*build, cwd=checkout, **tools)
    assert (checkout / "build/runtimes" / runtime.name).read_bytes() == runtime.read_bytes()
    [kernels] = (checkout / "build/kernels").iterdir()
    found = run(
        *(
            sys.executable,
            "-c",
            "from pie_inference.layers import native; print(native._compiled())",
        ),
        cwd=tmp_path,
        **{**tools, "PYTHONPATH": f"{checkout}:{checkout}/inference"},
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert found.strip() == str(kernels)
    assert not [*(tmp_path / "cache/pie_py/native").iterdir()]
    # Without what makes them it is installed as well.
    kernels.unlink()
    run(*build, cwd=checkout, **{**tools, "CC": "no-such-compiler"})
    assert not kernels.exists()


@pytest.mark.nightly
def test_sdist_and_wheel(tmp_path: Path) -> None:
    """The wheel is built from the sdist, and runs an inferlet of its own library."""
    out, site = tmp_path / "out", tmp_path / "site"
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out)
    [sdist] = out.glob("*.tar.gz")
    # Of the same sources it has the same name; others are not what the wheel would look for.
    runtime = runtime_component(ServerConfig().cache_folder)
    wheel = wheel_of(sdist, tmp_path / "wheel", **quick_tools(tmp_path / "tools", runtime))
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel)
    for marker in ("pie_py/py.typed", "inferlet/py.typed"):
        assert (site / marker).is_file(), "type information is shipped"
    assert (site / "pie_py/_share/runtimes" / runtime.name).read_bytes() == runtime.read_bytes()
    where = "import pie_py, pie_control, inferlet; print(pie_py.__file__, pie_control.__file__)"
    told = run(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(site))
    assert all(file.startswith(str(site)) for file in told.split())
    cache = tmp_path / "cache/pie_py"
    answer = run(
        *(sys.executable, "-m", "pie_py", "run", "text_completion", "--prompt", "Once upon"),
        cwd=tmp_path,
        PYTHONPATH=str(site),
        XDG_CACHE_HOME=str(cache.parent),
    )
    assert answer.strip()
    assert not list(cache.glob("python-runtime-*")), "the wheel has it"
    assert not list(cache.glob("compiled/*")), "the wheel has its code"
    told = run(
        *(sys.executable, "-m", "pie_py", "doctor", "--json"), cwd=tmp_path, PYTHONPATH=str(site)
    )
    (kernels,) = (each for each in json.loads(told) if each["what"] == "CPU kernels")
    assert kernels["found"].endswith(", of the wheel") or platform.machine() != "x86_64"
