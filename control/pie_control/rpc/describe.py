"""Descriptions of programs, instances, models and the server for clients, as plain values."""

from __future__ import annotations

import math
from array import array
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_control.api.session import READER
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.models.model import ModelService, OpenQueue
from pie_control.models.served import ServedModels, runs_of
from pie_control.models.tokenizer import TextCodec
from pie_control.programs.store import Program
from pie_py.wire.plan import ModelDescription

ARGS_CHARS = 1024  # of an instance's arguments, about
WHOLE_ARGS_CHARS = 32768  # of one that is looked at, which can be run again with these

MOST_PAGES = 1024  # of one model that are listed
MOST_SHARERS = 64
MOST_CHARACTERS = 8192  # of an instance's result


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
    aim, due_ns = instance.aim, None
    if aim.due < math.inf:
        due_ns = instance.created_ns + round((aim.due - aim.since) * 1e9)
    pages, tokens = models.kv_of(instance)
    most_pages = models.most_pages_of(instance)
    asleep = ended is None and instance.durable is not None and instance.durable.asleep
    for run in runs_of(instance):
        run.tokens  # noqa: B018 - they count once they are looked at
    return {
        "id": instance.id,
        "program": instance.program.name,
        "program_hash": instance.program.hash,
        "args": in_short(instance.args),
        "user": instance.user,
        "state": "asleep" if asleep else instance.state.value,
        "reason": ended.text[:500] if ended is not None and ended.state.value != "finished" else "",
        "parent": instance.parent.id if instance.parent is not None else None,
        "created_ns": instance.created_ns,
        "ended_ns": None if ended is None else ended.time_ns,
        "cpu_ms": instance.cpu_ns / 1e6,
        "memory_bytes": instance.memory_bytes,
        "pages": pages,
        "most_pages": sum(most_pages.values()),
        "uses": list(most_pages),
        "tokens": tokens,
        "prompt_tokens": instance.prompt_tokens,
        "generated_tokens": instance.generated_tokens,
        "waits": [] if ended is not None else waits_of(instance),
        "attached": instance.client.attached,
        "durable": instance.durable is not None,
        "objective": aim.goal.objective,
        "expected_tokens": aim.goal.expected_tokens,
        "deadline_ns": due_ns,
        "late": aim.is_late if ended is None else ended.time_ns > (due_ns or math.inf),
    }


def in_short(args: list[str], left: int = ARGS_CHARS) -> list[str]:
    """The beginning of an instance's arguments, which are up to 1 MB: a user has many instances."""
    short: list[str] = []
    for arg in args:
        if left <= 0:
            return [*short, "..."]
        short.append(arg if len(arg) <= left else f"{arg[:left]}...")
        left -= len(arg) + 1  # a list of nothing is no shorter
    return short


def describe_model(model: ModelDescription, *, local: bool) -> dict[str, Any]:
    """Facts about a served model; its folder is for clients on the same machine alone."""
    facts = asdict(model)
    if not local:
        del facts["folder"]
    return facts


def inspect(instance: Instance, models: ServedModels, scope: str | None) -> Any:
    """Facts about an instance, alive or ended, what it has sent last, its result or why it failed,
    and its pages, with the instances that share them: those of the user `scope`, or of all.
    """
    args = in_short(instance.args, WHOLE_ARGS_CHARS)
    return {
        **describe_instance(instance, models),
        "args": args,
        "args_cut": args != instance.args,
        "sent": instance.outbox.sent,
        "sent_total": instance.outbox.sent_total,
        "end": None if instance.ended is None else instance.ended.text[:MOST_CHARACTERS],
        "open_futures": len(instance.futures),
        "queued_commands": instance.queued_commands,
        "blocked": bool(instance.turn.blockers),
        "models": [
            _pages(instance, service, models, scope) for service in models.services.values()
        ],
    }


def waits_of(instance: Instance) -> list[str]:
    """Kinds of the futures that the guest waits for; none while it runs."""
    awaited = instance.turn.awaited
    if awaited is None:
        return []
    futures = (instance.futures.find(handle) for handle in awaited[:MOST_SHARERS])
    kinds = {future.waits_for for future in futures if future is not None}
    if FutureKind.RUN_TEXT in kinds and not instance.outbox.has_room:
        kinds.add(READER)  # the server sends that text for it
    return sorted(kinds)


def _pages(
    instance: Instance, service: ModelService, models: ServedModels, scope: str | None
) -> dict[str, Any]:
    """The pages on the device, by address, and the instances that share them."""
    space = service.spaces.get(instance)
    name = service.description.name
    codec = models.codec(name)
    addresses, held = np.empty(0, np.int64), np.empty(0, np.int32)
    if space is not None:
        addresses, held = space.pages.all_resident()
    shown = held[:MOST_PAGES]
    sharers: list[dict[str, Any]] = []
    for other, its in service.spaces.items():
        if other is instance or (scope is not None and other.user != scope):
            continue
        places = np.flatnonzero(np.isin(shown, its.pages.all_resident()[1]))
        if len(places) and len(sharers) < MOST_SHARERS:
            sharers.append({"instance": other.id, "places": places.tolist()})
    cached = np.flatnonzero(service.pages.cached[shown])
    return {
        "model": name,
        "pages": len(held),
        "page_size": 0 if space is None else service.pages.page_size,
        "cached": cached.tolist(),  # places whose pages the prefix cache holds, too
        "contexts": contexts(instance, service, codec, addresses[:MOST_PAGES]),
        "sharers": sharers,
    }


MOST = 128  # contexts
TEXT_TOKENS = 160  # the newest of a context's own


def contexts(
    instance: Instance, service: ModelService, codec: TextCodec, addresses: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """The contexts of one model, in the order in which they were made."""
    model = service.description.name
    gone = [each for each in instance.released if each.model == model]
    here = [(handle, each) for handle, each in instance.queues.items() if each.model is service]
    handles = {each.queue: each.handle for each in gone}
    handles |= {each.queue.id: handle for handle, each in here}

    def described(handle: int, made: Any, origin: Any, tokens: array[int], **more: Any) -> Any:
        parent = None if origin is None else origin.parent
        return {
            "queue": handle,
            "parent": None if parent is None else handles.get(parent),
            "created_ns": made.created_ns,
            "released_ns": None,
            "places": [],
            **more,
            **_text(tokens, 0 if parent is None else origin.begins, codec),
        }

    found = [
        described(each.handle, each, each, each.tokens, released_ns=each.released_ns)
        for each in gone
    ]
    for handle, each in here:
        branch, places = each.queue.branch, _places(each, addresses)
        if branch is not None or places:
            found.append(described(handle, each, branch, each.tokens(), places=places))
    return sorted(found, key=lambda each: int(each["queue"]))[-MOST:]


def tokens_of(instance: Instance, handle: int) -> list[int]:
    """The tokens of a context, alive or released; none of one that is not known."""
    if handle in instance.queues:
        found: OpenQueue = instance.queues[handle]
        return found.tokens().tolist()
    gone = [each.tokens for each in instance.released if each.handle == handle]
    return gone[-1].tolist() if gone else []


def _text(tokens: array[int], begins: int, codec: TextCodec) -> dict[str, Any]:
    """How many tokens a context has, how many it began with, and the newest text of its own."""
    own = tokens[max(begins, len(tokens) - TEXT_TOKENS) :]
    text = b"".join(map(codec.bytes_of, own)).decode(errors="replace")
    return {"tokens": len(tokens), "shared": begins, "text": text, "cut": len(own) == TEXT_TOKENS}


def _places(target: OpenQueue, addresses: NDArray[np.int64]) -> list[int]:
    """Which of the instance's pages its newest forward or run sees and fills."""
    seen = np.zeros(len(addresses), np.bool_)
    for spans in target.queue.sees:
        for first, count in zip(spans[::2], spans[1::2], strict=True):
            seen |= (addresses >= first) & (addresses < first + count)
    for run in target.runs.values():
        seen |= np.isin(addresses, run.pages.addresses)
    return np.flatnonzero(seen).tolist()
