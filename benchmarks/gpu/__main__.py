"""`python -m benchmarks.gpu PHASE --shape NAME`: one phase, its figures as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
import torch

from benchmarks.gpu import phases
from benchmarks.gpu.shapes import SHAPES
from pie_inference.attention import AttentionOptions
from pie_inference.cuda.kernels import Wanted, compile_kernels
from pie_inference.errors import LoadError
from pie_inference.models.llama import llama
from pie_inference.models.shape import ModelShape
from pie_py.config.model import FlashInferConfig

SMALL = ("append", "norm", "rope", "activation")  # kernels
DTYPES = (torch.bfloat16, torch.float8_e4m3fn)  # of keys and values
# What the families have together that `tests/gpu` serves.
ODD = ModelShape(
    attention=tuple(
        AttentionOptions(None, cap, window) for cap in (None, 5.0) for window in (None, 9)
    ),
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=64,
    vocab_size=512,
    max_position=512,
)
CORES, LARGE = FlashInferConfig(decode="cuda-cores"), SHAPES["llama-3.1-8b"]


def main() -> int:
    """Reads the command line and runs a phase."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu")
    parser.add_argument(
        "phase", choices=["machine", "compile", "decode", "prefill", "swap"], help="what to measure"
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--count", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--context", type=int, default=512, help="tokens before the measured ones")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--length", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--config", type=json.loads, default={}, help="of the model, as JSON")
    parser.add_argument(
        "--capability",
        type=int,
        nargs=2,
        default=(),
        help="compile for another GPU than this one's",
    )
    parser.add_argument(
        "--all", action="store_true", help="compile what tests and variants need, too"
    )
    options = parser.parse_args()
    # Standard output is for the figures.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        print(json.dumps(_run(options, Path(folder))))
    return 0


def _compile(wanted: list[Wanted], capability: tuple[int, int]) -> list[str]:
    """Compiles kernels; tells which cannot be.

    Raises:
        LoadError: if those for attention cannot be.
    """
    try:
        compile_kernels(wanted, capability)
    except LoadError as error:
        print(error, file=sys.stderr)
    else:
        return []
    off = []
    for kernels in SMALL:
        alone = FlashInferConfig.model_validate({"without": {*SMALL} - {kernels}})
        try:
            compile_kernels([replace(model, config=alone) for model in wanted[:1]], capability)
        except LoadError as error:
            print(error, file=sys.stderr)
            off.append(kernels)
    rest = FlashInferConfig.model_validate({"without": off})
    compile_kernels([replace(model, config=rest) for model in wanted], capability)
    return off


def _run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    match options.phase:
        case "machine":
            found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            size, megabytes = (8192, 1024) if found.type == "cuda" else (256, 16)
            return phases.ceilings(found, size, megabytes)
        case "compile":
            config = FlashInferConfig.model_validate(options.config.get("flashinfer", {}))
            wanted = [
                Wanted(config, llama(shape).shape, torch.bfloat16, stored)
                for shape in SHAPES.values()
                for stored in DTYPES[: 1 + options.all]
            ]
            if options.all:
                wanted += [
                    Wanted(config, ODD, torch.bfloat16, torch.bfloat16, "gelu_tanh"),
                    Wanted(CORES, llama(LARGE).shape, *DTYPES[:1] * 2),
                ]
            capability = tuple(options.capability) or torch.cuda.get_device_capability()
            return {"off": _compile(wanted, capability)}
        case "decode":
            return phases.decode(
                options.shape,
                folder,
                options.count,
                options.context,
                options.steps,
                **options.config,
            )
        case "prefill":
            return phases.prefill(options.shape, folder, options.length, **options.config)
        case _:
            return phases.swap(
                options.shape,
                folder,
                options.count[0],
                options.context,
                options.steps,
                **options.config,
            )


if __name__ == "__main__":
    sys.exit(main())
