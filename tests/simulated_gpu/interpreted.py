"""Triton's kernels on the simulated GPU: the real ones, which Triton's interpreter runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from simulated_gpu.tensors import GpuTensor, buffers, off_the_device, simulation


def install() -> None:
    """Puts it in place, before anything imports Triton.

    Raises:
        ImportError: if Triton is not installed.
    """
    os.environ["TRITON_INTERPRET"] = "1"  # looked at when kernels are defined
    from triton.runtime import interpreter
    from triton.runtime.interpreter import GridExecutor

    interpreter._patch_lang = _once(interpreter._patch_lang)
    carry_out = GridExecutor.__call__

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        name = self.fn.__name__
        named = dict(zip(self.arg_names, args, strict=False)) | kwargs
        tensors = {k: v for k, v in named.items() if hasattr(v, "data_ptr")}
        for key, tensor in tensors.items():
            assert isinstance(tensor, GpuTensor), f"{name}: {key} is not on the device"
            assert tensor.is_contiguous(), f"{name}: {key} has gaps"
        inner = [a.inner if isinstance(a, GpuTensor) else a for a in args]

        def run() -> None:
            carry_out(self, *inner, **kwargs)

        with off_the_device():
            run()
        simulation.device.launch(name, buffers(tensors.values()), run)

    GridExecutor.__call__ = launch


def _once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Has the interpreter put its functions into Triton's language once for a module, not in every
    call of a function of it, and leave them there: most of its time went into that.
    """
    scopes: dict[int, type[Any]] = {}

    def patch_once(function: Any) -> Any:
        module = id(function.__globals__)
        if module not in scopes:
            scopes[module] = type(patch(function))
        return scopes[module]()  # with nothing to restore

    return patch_once
