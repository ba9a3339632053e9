"""What is set at the gateway for all nodes, as one document that nodes pull."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec


class Setting(msgspec.Struct, frozen=True):
    """What a node is asked so that it has something, and so that it has it no more."""

    method: str
    params: dict[str, Any]
    back: str
    back_params: dict[str, Any]


def adapter(model: str, name: str, folder: str) -> Setting:
    """An adapter, in a folder that every node's machine has."""
    place = {"model": model, "name": name}
    return Setting("load-adapter", {**place, "folder": folder}, "unload-adapter", place)


def mcp_server(user: str, name: str, fields: dict[str, Any]) -> Setting:
    """An MCP server of a user; `fields` are those of `register-mcp`."""
    whose = {"user": user, "name": name}
    return Setting("register-mcp", {**fields, **whose}, "unregister-mcp", whose)


def version_of(settings: Sequence[Setting]) -> int:
    """A hash of what is set, of 52 bits: a gateway that is started again has the same."""
    text = msgspec.json.encode(settings, order="deterministic")
    return int.from_bytes(blake2b(text, digest_size=8).digest()) >> 12
