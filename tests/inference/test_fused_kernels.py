"""Triton compiles the kernels that choose tokens for NVIDIA's chips, which takes no GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton"
)

COMPILE = """
import sys
from pathlib import Path

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from pie_inference.cuda import sampling_kernels as k

POINTERS = {"parameters": "*i32", "masks": "*i32", "numbers": "*fp32", "ids": "*i32"}
POINTERS |= {"kept": "*i64", "out": "*i32"}


def build(kernel, warps, logits, capability, **constants):
    kinds = {"logits": f"*{logits}", **POINTERS}
    kinds |= dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constants)
    target = GPUTarget("cuda", capability, 32)
    return compile(source, target=target, options={"num_warps": warps}).asm["cubin"]


for capability in (80, 90):
    for logits in ("bf16", "fp32"):
        given = (logits, capability)
        race = build(k.race, k.RACE_WARPS, *given, VOCABULARY=128256, BLOCK=k.RACE_BLOCK)
        constants = {"VOCABULARY": 128256, "BLOCKS": 64, "BLOCK": k.DECIDE_BLOCK}
        decide = build(k.decide, k.DECIDE_WARPS, *given, **constants)
        for name, cubin in (("race", race), ("decide", decide)):
            Path(sys.argv[1], f"{name}-{logits}-{capability}").write_bytes(cubin)
"""


@pytest.mark.slow
def test_they_compile_and_keep_to_registers(tmp_path: Path) -> None:
    """In a process of its own: Triton must not have been told to interpret."""
    subprocess.run([sys.executable, "-c", COMPILE, str(tmp_path)], check=True)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 8
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for file in files:
        told = subprocess.run(
            [tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True
        ).stdout
        # What does not fit the registers would lie in memory.
        assert "STACK:0 " in told, file.name
        assert "LOCAL:0 " in told, file.name
