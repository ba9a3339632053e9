"""Gathers what a GPU machine lacks that can fetch nothing: packages, and what is built here.

    python benchmarks/gpu/carry.py FOLDER [KERNELS]

Then, on that machine, from the checkout, with FOLDER beside it:

    sh FOLDER/run.sh OUT SECONDS [OPTIONS of `python -m benchmarks gpu`]

The machine has PyTorch for CUDA, transformers, peft, a CUDA compiler and ninja. Versions are those
installed where this runs. Called again while the machine lasts, the script goes on with what is not
measured yet. Kernels that it has compiled come back as OUT/kernels.tar.xz; given as KERNELS, they
spare the next machine the work.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import tomllib
from importlib.metadata import distribution, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.programs import bench_programs
from pie_py.build.python import runtime_component

FLASHINFER = (
    "flashinfer-python==0.6.6",
    "apache-tvm-ffi<0.2",
    "einops",
    "nvidia-ml-py",
    "tabulate",
)
# There, with all that they need, or not wanted there: nothing is built, and MCP is not served.
STAYS = {
    "componentize-py",
    "huggingface-hub",
    "mcp",
    "numpy",
    "pillow",
    "psutil",
    "rich",
    "safetensors",
    "tokenizers",
    "torch",
}
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 24, 17, 12, 5)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]
LIMIT = 64 << 20  # bytes, with the checkout
ROOT = Path(__file__).parents[2]

RUN = """\
#!/bin/sh
# Runs the GPU tests and benchmarks of the checkout in the working folder.
set -e
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd); seconds=$2; shift 2
place=/tmp/pie-gpu; site=$place/site; report=$place/report
if [ ! -d $site ]; then
    python3 -m tarfile -e "$here/site.tar.xz" $site.new
    mv $site.new $site
fi
# Kernels are linked with -lcuda and -lcudart, compiled by $CUDA_HOME/bin/nvcc, and want headers of
# cuBLAS: toolkits differ in where those are, a driver brings libcuda.so.1 only, and PyTorch brings
# the headers.
if [ -z "$CUDA_HOME" ] && [ -x /usr/local/cuda/bin/nvcc ]; then export CUDA_HOME=/usr/local/cuda; fi
mkdir -p $place/lib
torch=$(python3 -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
for name in cuda cudart; do
    found=$( (ldconfig -p | sed -n "s|.*=> \\(.*/lib$name\\.so.*\\)|\\1|p"
        find /usr/local/ /usr/lib "$torch/nvidia" -name "lib$name.so*" 2>/dev/null) | head -n 1)
    if [ -n "$found" ]; then ln -sf "$found" "$place/lib/lib$name.so"; fi
done
export LIBRARY_PATH="$place/lib:$LIBRARY_PATH"
for folder in "$torch"/nvidia/*/include; do CPLUS_INCLUDE_PATH="$CPLUS_INCLUDE_PATH:$folder"; done
export CPLUS_INCLUDE_PATH="${CPLUS_INCLUDE_PATH#:}"
export PYTHONPATH="@folders@:$PWD/tests:$site"
export PYTHONUNBUFFERED=1 PIE_PY_CACHE_FOLDER=$site/cache PIE_BENCH_PROGRAM=$site/bench.wasm
mkdir -p $report
python3 -m benchmarks gpu --out $report --seconds "$seconds" "$@" || echo "it ended with status $?"
tar -czf "$out/logs.tgz" -C $report .
cp $report/gpu.json $report/gpu.md "$out" || true
cd ~/.cache/flashinfer/*/*/cached_ops && python3 -m tarfile -c "$out/kernels.tar.xz" */*.so || true
"""


def needed(root: str = "pie-py") -> set[str]:
    """Names of the packages that a package needs, by what is installed here, without `STAYS`."""
    found: set[str] = set()
    left = [Requirement(root)]
    while left:
        of = left.pop()
        for text in requires(of.name) or ():
            one = Requirement(text)
            name = canonicalize_name(one.name)
            if name in found | STAYS or not _applies(one, of.extras):
                continue
            found.add(name)
            left.append(one)
    return found


def _applies(one: Requirement, extras: set[str]) -> bool:
    settings = ({"extra": extra} for extra in ("", *extras))
    return one.marker is None or any(one.marker.evaluate(each) for each in settings)


def run_script() -> str:
    """The script that runs there: packages are found where an editable installation finds them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = project["tool"]["hatch"]["build"]["dev-mode-dirs"]
    return RUN.replace("@folders@", ":".join(f"$PWD/{folder}" for folder in folders))


def install(site: Path) -> None:
    """Installs packages as that machine would."""
    wanted = [*FLASHINFER, *(f"{name}=={version(name)}" for name in sorted(needed()))]
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:"),
            *("--python-version", "3.12", "--implementation", "cp"),
            *("--abi", "cp312", "--abi", "abi3", "--abi", "none"),
            *(*platforms, "--no-compile", "--target", str(site), *wanted),
        ],
        check=True,
    )


def build(site: Path) -> None:
    """Adds what is built here."""
    (site / "bench.wasm").write_bytes(bench_programs(["rust"])["rust"])
    runtime_component(site / "cache")
    # The runtime's file is found by the version of what has built it.
    builder = distribution("componentize-py")
    about = site / f"componentize_py-{builder.version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(builder.read_text("METADATA") or "")


def main(folder: Path, kernels: Path | None = None) -> None:
    """Fills the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.sh").write_text(run_script())
    with tempfile.TemporaryDirectory() as name:
        site = Path(name)
        install(site)
        build(site)
        if kernels is not None:
            with tarfile.open(kernels) as tar:
                tar.extractall(site / "flashinfer" / "data" / "aot", filter="data")
        with tarfile.open(folder / "site.tar.xz", "w:xz") as tar:
            tar.add(site, ".")
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    checkout = sum((ROOT / file).lstat().st_size for file in files if file)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{size / 2**20:.1f} MiB in {folder}; the checkout has {checkout / 2**20:.1f}")
    if size + checkout > LIMIT:
        sys.exit(f"more than {LIMIT >> 20} MiB together")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
