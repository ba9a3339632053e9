"""Tensors that lie on the simulated GPU, and pinned memory."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from simulated_gpu.device import Buffer, Device

CUDA = torch.device("cuda:0")
COPIES = {"copy_", "_to_copy", "to"}
# Their result, or its shape, has to come back before the host goes on.
ASKING = {
    *("item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "allclose"),
    *("bincount", "repeat_interleave", "unique", "_unique2", "unique_consecutive"),
}


class GpuTensor(torch.Tensor):
    """A tensor on the simulated GPU. To PyTorch's own C++ it is one without memory, on `meta`."""

    inner: torch.Tensor  # type: ignore[assignment]  # the numbers, in host memory; hides a method
    buffer: Buffer  # what its memory is a part of

    # As PyTorch's own documentation of wrapper subclasses has it.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor, buffer: Buffer) -> GpuTensor:
        found: GpuTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=torch.device("meta"),
        )
        found.inner = inner
        found.buffer = buffer
        return found

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's own signature says less
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return simulation.dispatch(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.inner!r} on {CUDA}"

    def tolist(self) -> Any:
        simulation.device.ask("tolist")
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self, *_: Any) -> torch.Tensor:
        return self.to("cpu")

    def record_stream(self, stream: Any) -> None:
        pass


class Simulation(TorchDispatchMode):
    """Sends what is on `cuda` to the simulated GPU; everything else goes its usual way."""

    def __init__(self) -> None:
        super().__init__()
        self.device = Device()
        self._pinned: set[int] = set()  # storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carries out an operation of PyTorch's."""
        tensors = _tensors(args, kwargs)
        here = [t for t in tensors if isinstance(t, GpuTensor)]
        name = func.overloadpacket.__name__
        target = _target(func, args, kwargs)
        if name in COPIES and _crosses(tensors, target):
            return self._copy(name, func, args, kwargs, target)
        if here or target == CUDA:
            return self._compute(name, func, args, kwargs, tensors, here)
        pin = kwargs.pop("pin_memory", False)
        found = func(*args, **kwargs)
        return self.pin(found) if pin else found

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Makes a tensor's memory count as pinned."""
        storage = tensor.untyped_storage()
        self._pinned.add(storage._cdata)
        weakref.finalize(storage, self._pinned.discard, storage._cdata)
        return tensor

    def pinned(self, tensor: torch.Tensor) -> bool:
        """True if it lies in pinned memory of the host."""
        ours = isinstance(tensor, GpuTensor) or tensor.layout != torch.strided
        return not ours and tensor.untyped_storage()._cdata in self._pinned

    def _compute(
        self, name: str, func: Any, args: Any, kwargs: Any, tensors: Any, here: list[GpuTensor]
    ) -> Any:
        """On the device alone."""
        indexing = name in ("index", "index_put", "index_put_", "_index_put_impl_")
        for tensor in tensors:
            if not isinstance(tensor, GpuTensor) and tensor.ndim:
                if not indexing:
                    raise RuntimeError(
                        f"{name}: expected all tensors to be on the same device, but found at"
                        f" least two devices, {CUDA} and {tensor.device}"
                    )
                self.device.ask(f"{name} by a tensor of the host")
        # `output_size` tells the result's shape.
        asks = name in ASKING and kwargs.get("output_size") is None
        if asks or (indexing and any(t.dtype == torch.bool for t in tensors[1:])):
            self.device.ask(name)
        kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        # `to` has it among the others.
        args = tuple(torch.device("cpu") if isinstance(a, torch.device) else a for a in args)
        inner_args, inner_kwargs = _mapped(_inner, args), _mapped(_inner, kwargs)
        found = func(*inner_args, **inner_kwargs)
        written = [t for t in _written(func, args, kwargs) if isinstance(t, GpuTensor)]
        outputs, fresh = self._wrapped(found, here)
        if "empty" in name:
            for tensor in fresh:
                _spoil(tensor.inner)
        elif fresh or written or not outputs:  # else it is a view
            memory = [t.buffer for t in (*here, *written, *fresh)]
            self.device.launch(name, memory, _again(func, inner_args, inner_kwargs, found))
        each = iter(outputs)
        return _mapped(lambda x: next(each) if isinstance(x, torch.Tensor) else x, found)

    def _wrapped(self, found: Any, here: list[GpuTensor]) -> tuple[list[GpuTensor], ...]:
        """Results as tensors of the device, and those of them whose memory is new."""
        owners = {t.inner.untyped_storage()._cdata: t.buffer for t in here}
        outputs: list[GpuTensor] = []
        fresh: list[GpuTensor] = []
        for tensor in _tensors(found):
            same = next((t for t in here if t.inner is tensor), None)
            storage = tensor.untyped_storage()
            is_new = storage._cdata not in owners
            if is_new:
                owners[storage._cdata] = self.device.allocate(storage.nbytes())
            outputs.append(same if same is not None else GpuTensor(tensor, owners[storage._cdata]))
            if is_new:
                fresh.append(outputs[-1])
        return outputs, fresh

    def _copy(self, name: str, func: Any, args: Any, kwargs: Any, target: Any) -> Any:
        """Between the host and the device."""
        destination, source = args[:2] if name == "copy_" else (None, args[0])
        place = _signature(func).non_blocking
        positional = place is not None and place < len(args) and args[place]
        later = bool(kwargs.get("non_blocking") or positional)
        device = self.device
        if isinstance(source, GpuTensor):
            found = destination
            if found is None:
                found = source.inner.to(dtype=_dtype(args, kwargs) or source.dtype, copy=True)
            else:
                found.copy_(source.inner)
            if later and not self.pinned(found):
                raise RuntimeError(f"{name}: a copy to pageable memory cannot be non_blocking")
            device.launch(name, [source.buffer], lambda: found.copy_(source.inner))
            if not later:
                device.ask(f"{name} to the host")
            return found
        if destination is None:
            inner = source.to(dtype=_dtype(args, kwargs) or source.dtype, copy=True)
            size = inner.untyped_storage().nbytes()
            destination = GpuTensor(inner, device.allocate(size))
        else:
            destination.inner.copy_(source)
        device.launch(name, [destination.buffer], lambda: destination.inner.copy_(source))
        if not later or (not self.pinned(source) and source.nbytes > 64 << 10):
            device.ask(f"{name} to the device")
        return destination


def _target(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device that an operation names."""
    device = kwargs.get("device")
    if device is None and func.overloadpacket.__name__ == "to":
        device = next((a for a in args[1:] if isinstance(a, torch.device)), None)
        if device is None and len(args) > 1 and isinstance(args[1], torch.Tensor):
            device = args[1].device
    if device is None:
        return None
    device = torch.device(device)
    return CUDA if device.type in ("cuda", "meta") else device


def _crosses(tensors: list[torch.Tensor], target: torch.device | None) -> bool:
    kinds = {isinstance(t, GpuTensor) for t in tensors}
    if target is not None:
        kinds.add(target == CUDA)
    return len(kinds) == 2


def _dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    return kwargs.get("dtype") or next((a for a in args if isinstance(a, torch.dtype)), None)


def _tensors(*values: Any) -> list[torch.Tensor]:
    """All tensors in nested arguments, in order."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _tensors(*value)
        elif isinstance(value, dict):
            found += _tensors(*value.values())
    return found


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Nested arguments with what a function makes of each."""
    if isinstance(value, tuple | list):
        parts = [_mapped(change, x) for x in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {k: _mapped(change, v) for k, v in value.items()}
    return change(value)


@contextmanager
def off_the_device() -> Iterator[None]:
    """Within it PyTorch is as it was: for stand-ins of kernels, and for what runs once more."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, GpuTensor) else x


@dataclass(frozen=True)
class _Signature:
    """What an operation's schema says. To ask PyTorch takes longer than most operations."""

    written: tuple[tuple[int, str], ...]  # arguments that it writes to: places and names
    non_blocking: int | None  # the place of this argument


@functools.cache
def _signature(func: Any) -> _Signature:
    arguments = list(enumerate(func._schema.arguments))
    changed = [(at, a) for at, a in arguments if a.alias_info and a.alias_info.is_write]
    return _Signature(
        written=tuple((at, a.name) for at, a in changed),
        non_blocking=next((at for at, a in arguments if a.name == "non_blocking"), None),
    )


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Arguments that an operation writes to."""
    found: list[torch.Tensor] = []
    for at, name in _signature(func).written:
        found += _tensors(args[at] if at < len(args) else kwargs.get(name))
    return found


def _again(func: Any, args: Any, kwargs: Any, found: Any) -> Callable[[], object]:
    """What does the operation once more, into the same memory."""
    results = _tensors(found)

    def run() -> None:
        for result, fresh in zip(results, _tensors(func(*args, **kwargs)), strict=True):
            if result is not fresh:
                result.copy_(fresh)

    return run


def _spoil(tensor: torch.Tensor) -> None:
    """What has just been allocated holds anything."""
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
        tensor.fill_(torch.nan)
    elif tensor.dtype.itemsize > 1:
        tensor.fill_(torch.iinfo(tensor.dtype).max // 3)


class Devices(TorchFunctionMode):
    """Names `meta` to PyTorch where it is told `cuda`, which a build for the CPU does not know."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs = {**kwargs, "device": _hidden(torch.device(kwargs["device"]))}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is torch.Tensor.to and len(args) > 1 and isinstance(args[1], str):
            args = (args[0], torch.device(args[1]), *args[2:])
        return func(*(_hidden(a) for a in args), **kwargs)


def _hidden(x: Any) -> Any:
    return torch.device("meta") if isinstance(x, torch.device) and x.type == "cuda" else x


simulation = Simulation()


def buffers(tensors: Iterable[object]) -> list[Buffer]:
    """Of those that are on the device."""
    return [t.buffer for t in tensors if isinstance(t, GpuTensor)]
