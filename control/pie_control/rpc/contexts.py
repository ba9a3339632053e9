"""Contexts of an instance as a tree, for people: a queue each, with its text as far as the server
has seen it written, and the one that it was forked from.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_control.instances.instance import Instance
from pie_control.models.model import ModelService, OpenQueue
from pie_control.models.tokenizer import TextCodec

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
    found = [
        {
            "queue": each.handle,
            "parent": handles.get(each.parent) if each.parent is not None else None,
            "created_ns": each.created_ns,
            "released_ns": each.released_ns,
            "places": [],
            **_text(each.tokens, 0 if each.parent is None else each.begins, codec),
        }
        for each in gone
    ]
    for handle, each in here:
        branch, places = each.queue.branch, _places(each, addresses)
        if branch is None and not places:
            continue
        parent = None if branch is None else branch.parent
        begins = 0 if branch is None or parent is None else branch.begins
        found.append(
            {
                "queue": handle,
                "parent": None if parent is None else handles.get(parent),
                "created_ns": each.created_ns,
                "released_ns": None,
                "places": places,
                **_text(each.tokens(), begins, codec),
            }
        )
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
