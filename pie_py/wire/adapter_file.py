"""A LoRA adapter as one file, the form in which it is uploaded.

It is the safetensors file that PEFT saves, whose metadata have the text of `adapter_config.json` as
`adapter_config`.
"""

from __future__ import annotations

import json
from typing import Any

CONFIG = "adapter_config"
CONFIG_FILE, TENSOR_FILE = "adapter_config.json", "adapter_model.safetensors"
MOST_HEADER = 1 << 20  # bytes
_START = 8  # bytes of the header's length, before it


class BadAdapter(ValueError):
    """The bytes are no adapter; the text says why."""


def is_adapter(head: bytes) -> bool:
    """True if a file begins so: with the length of a header of less than 4 GiB, and an object."""
    return head[4:_START] == bytes(4) and head[_START : _START + 1] == b"{"


def names_config(head: bytes) -> bool:
    """True if the header of a safetensors file, or its first `MOST_HEADER` bytes, names one."""
    end = _START + int.from_bytes(head[:_START], "little")
    return f'"{CONFIG}"'.encode() in head[_START : min(end, MOST_HEADER)]


def pack(config: bytes, tensors: bytes) -> bytes:
    """The one file, of the bytes of PEFT's two.

    Raises:
        BadAdapter: they are no such files.
    """
    header, data = split(tensors)
    try:
        header["__metadata__"] = {**header.get("__metadata__", {}), CONFIG: config.decode()}
    except (UnicodeDecodeError, TypeError):
        raise BadAdapter(f"{CONFIG_FILE} is no text, or {TENSOR_FILE} has other metadata") from None
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _START)
    return len(text).to_bytes(_START, "little") + text + data


def split(tensors: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and what is behind it.

    Raises:
        BadAdapter: it has no such header, or one of more than `MOST_HEADER` bytes.
    """
    end = _START + int.from_bytes(tensors[:_START], "little")
    if not is_adapter(tensors[: _START + 1]) or not _START < end <= len(tensors):
        raise BadAdapter(f"{TENSOR_FILE} is no safetensors file")
    if end > MOST_HEADER:
        raise BadAdapter(f"{TENSOR_FILE} has a header of {end} bytes; {MOST_HEADER} at most")
    try:
        header = json.loads(tensors[_START:end])
    except (ValueError, RecursionError) as error:
        raise BadAdapter(f"the header of {TENSOR_FILE} cannot be read: {error}") from None
    return header, tensors[end:]
