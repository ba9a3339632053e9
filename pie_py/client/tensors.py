"""Tensors as files in memory, for a server on the same machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SHARED = Path("/dev/shm")  # Linux's files in memory


@contextmanager
def shared_file() -> Iterator[Path]:
    """A file in memory, where there are such, that is removed at the end."""
    where = SHARED if SHARED.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="pie-", dir=where) as folder:
        yield Path(folder, "tensors.safetensors")


def write_tensors(file: Path, tensors: Mapping[str, Any]) -> None:
    """Writes PyTorch's or NumPy's tensors. Raises `ValueError`: they are none, or of both."""
    kinds = {type(tensor).__module__.partition(".")[0] for tensor in tensors.values()}
    if kinds == {"numpy"}:
        from safetensors.numpy import save_file

        save_file(dict(tensors), file)
    elif kinds == {"torch"}:
        from safetensors.torch import save_file as save

        seen: set[int] = set()
        whole: dict[str, Any] = {}
        for name, tensor in tensors.items():
            given = tensor.detach().cpu().contiguous()
            # A file has no two tensors in one place, as a head that is the embedding.
            whole[name] = given.clone() if given.data_ptr() in seen else given
            seen.add(given.data_ptr())
        save(whole, file)
    else:
        raise ValueError(f"tensors of PyTorch or arrays of NumPy are wanted, not {sorted(kinds)}")
