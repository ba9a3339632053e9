"""Descriptions of programs, instances, models and the server for clients, as plain values."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

from pie_control.instances.instance import Instance
from pie_control.instances.log import LogLine
from pie_control.models.served import ServedModels
from pie_control.programs.store import Program
from pie_control.rpc.inspect import waits_of
from pie_py.wire.plan import ModelDescription

ARGS_CHARS = 1024  # of an instance's arguments, about


def describe_program(program: Program) -> dict[str, Any]:
    """Facts about a program."""
    return {
        "hash": program.hash,
        "name": program.name,
        "kind": program.kind,
        "size": program.size,
        "user": program.uploaded_by,
        "uploaded_ns": program.uploaded_ns,
    }


def describe_instance(instance: Instance, models: ServedModels) -> dict[str, Any]:
    """Facts about an instance."""
    ended = instance.ended
    return {
        "id": instance.id,
        "program": instance.program.name,
        "program_hash": instance.program.hash,
        "args": _in_short(instance.args),
        "user": instance.user,
        "state": instance.state.value,
        "reason": ended.text[:500] if ended is not None and ended.state.value != "finished" else "",
        "parent": instance.parent.id if instance.parent is not None else None,
        "created_ns": instance.created_ns,
        "ended_ns": None if ended is None else ended.time_ns,
        "cpu_ms": instance.cpu_ns / 1e6,
        "pages": models.pages_of(instance),
        "tokens": models.tokens_of(instance),
        "waits": [] if ended is not None else waits_of(instance),
        "attached": instance.client.attached,
    }


def _in_short(args: list[str]) -> list[str]:
    """The beginning of an instance's arguments, which are up to 1 MB: a user has many instances."""
    told: list[str] = []
    left = ARGS_CHARS
    for arg in args:
        if left <= 0:
            return [*told, "..."]
        told.append(arg if len(arg) <= left else f"{arg[:left]}...")
        left -= len(arg) + 1  # a list of nothing is no shorter
    return told


def describe_log(lines: list[LogLine]) -> list[dict[str, Any]]:
    """Lines of a log."""
    return [{"time_ns": line.time_ns, "level": line.level, "text": line.text} for line in lines]


def describe_model(model: ModelDescription, *, local: bool) -> dict[str, Any]:
    """Facts about a served model; its folder is for clients on the same machine alone."""
    facts = asdict(model)
    if not local:
        del facts["folder"]
    return facts


def describe_stats(models: ServedModels) -> dict[str, Any]:
    """Numbers of every model's scheduler and pools."""
    return {name: _plain(service.stats()) for name, service in models.services.items()}


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
