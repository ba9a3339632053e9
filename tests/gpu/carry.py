"""Gathers what a GPU machine lacks that can fetch nothing: wheels, and the benchmarks' inferlet.

    python tests/gpu/carry.py FOLDER

Then, on that machine, from the checkout, with FOLDER beside it:

    sh FOLDER/run.sh OUT SECONDS [OPTIONS of `python -m benchmarks gpu`]

The machine has PyTorch for CUDA, transformers, peft, a CUDA compiler and ninja. Versions are those
installed where this runs.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from pie_py.bench.programs import bench_programs

FLASHINFER = (
    "flashinfer-python==0.6.6",
    "apache-tvm-ffi<0.2",
    "einops",
    "nvidia-ml-py",
    "tabulate",
)
# Of the server and its client; PyTorch's and transformers' own needs are there.
NEEDED = (
    "annotated-types",
    "httpcore2",
    "httpx2",
    "jsonschema",
    "jsonschema-specifications",
    "llguidance",
    "mcp",
    "mcp-types",
    "msgpack",
    "opentelemetry-api",
    "outcome",
    "platformdirs",
    "pydantic",
    "pydantic-core",
    "pydantic-settings",
    "pyjwt",
    "python-dotenv",
    "python-multipart",
    "pyzmq",
    "referencing",
    "rpds-py",
    "sniffio",
    "sse-starlette",
    "starlette",
    "structlog",
    "trio",
    "truststore",
    "typing-inspection",
    "uvicorn",
    "wasmtime",
)
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 24, 17, 12, 5)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]
LIMIT = 64 << 20  # bytes

RUN = """\
#!/bin/sh
# Runs the GPU tests and benchmarks of the checkout in the working folder.
set -e
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd); seconds=$2; shift 2
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \\
    --target /tmp/pie-gpu-site "$here"/*.whl
# Kernels are linked with -lcuda and -lcudart, compiled by $CUDA_HOME/bin/nvcc, and want headers of
# cuBLAS: toolkits differ in where those are, a driver brings libcuda.so.1 only, and PyTorch brings
# the headers.
if [ -z "$CUDA_HOME" ] && [ -x /usr/local/cuda/bin/nvcc ]; then export CUDA_HOME=/usr/local/cuda; fi
mkdir -p /tmp/pie-gpu-lib
torch=$(python3 -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
for name in cuda cudart; do
    found=$( (ldconfig -p | sed -n "s|.*=> \\(.*/lib$name\\.so.*\\)|\\1|p"
        find /usr/local/ /usr/lib "$torch/nvidia" -name "lib$name.so*" 2>/dev/null) | head -n 1)
    if [ -n "$found" ]; then ln -sf "$found" "/tmp/pie-gpu-lib/lib$name.so"; fi
done
export LIBRARY_PATH="/tmp/pie-gpu-lib:$LIBRARY_PATH"
for folder in "$torch"/nvidia/*/include; do CPLUS_INCLUDE_PATH="$CPLUS_INCLUDE_PATH:$folder"; done
export CPLUS_INCLUDE_PATH="${CPLUS_INCLUDE_PATH#:}"
# Kernels that were compiled before: FOLDER/aot is what earlier runs brought back, unpacked.
if [ -d "$here/aot" ]; then cp -r "$here/aot" /tmp/pie-gpu-site/flashinfer/data/aot; fi
export PYTHONPATH="$PWD:$PWD/control:$PWD/inference:$PWD/sdk/python:$PWD/tests:/tmp/pie-gpu-site"
export PYTHONUNBUFFERED=1 PIE_PY_CACHE_FOLDER=/tmp/pie-gpu-cache
export PIE_BENCH_PROGRAM="$here/bench.wasm"
python3 -m benchmarks gpu --out "$out" --seconds "$seconds" --program "$here/bench.wasm" "$@" ||
    echo "it ended with status $?"
(cd "$out" && tar -czf logs.tgz ./*.log && rm -f ./*.log)
# What was compiled need not be again: `cat OUT/aot.tgz.* | tar -xz -C FOLDER/aot`.
cd ~/.cache/flashinfer/*/*/cached_ops && tar -cz ./*/*.so | split -b 15m - "$out/aot.tgz." || true
"""


def main(folder: Path) -> None:
    """Fills the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [*FLASHINFER, *(f"{name}=={version(name)}" for name in NEEDED)]
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"),
            *(
                "--python-version",
                "3.12",
                "--implementation",
                "cp",
                "--abi",
                "cp312",
                "--abi",
                "abi3",
            ),
            *("--abi", "none", *platforms, "-d", str(folder), *wanted),
        ],
        check=True,
    )
    (folder / "bench.wasm").write_bytes(bench_programs(["rust"])["rust"])
    (folder / "run.sh").write_text(RUN)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{size / 2**20:.1f} MiB in {folder}")
    if size > LIMIT:
        sys.exit(f"more than {LIMIT >> 20} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
