"""A command line and a generation with a host that does nothing, before there is a program.

CPython rewrites the code that it runs for what it meets, and each page of memory that an instance
writes to for the first time, if only to count a reference, is copied for it then. A rehearsal while
the component is built has the first done for all instances; one in an instance that waits for its
program has its own pages copied, in time that no request waits for.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeAlias

from wit_world.imports import (
    allocate,
    forward,
    input_text,
    prefix_cache,
    runtime,
    sample,
    session,
    tokenize,
)

from inferlet import model
from inferlet._guest import program
from inferlet._guest.modules import Program

FILE = "rehearsal.py"
TEXT = """
import asyncio, json, random, time
from argparse import ArgumentParser
from collections.abc import AsyncIterator
from inferlet import Context, Model, Sampler, raw, runtime, session

async def main(args: list[str]) -> str:
    options = arguments(["--count", *args])
    context = Context(Model.load()).append(json.loads("[1, 2, 3]")).fill("x")
    session.send("x")
    count = options.count
    return json.dumps([token async for token in tokens(context, count)])

def arguments(args: list[str]):
    parser = ArgumentParser("rehearsal", description="Generates.")
    parser.add_argument("--count", type=int, help="tokens")
    parser.add_argument("--kind", choices=["a", "b"], default="a", help="of tokens")
    parser.add_argument("--quiet", action="store_true", help="no messages")
    parser.format_help()
    return parser.parse_args(args)

def tokens(context: Context, count: int) -> AsyncIterator[int]:
    return context.generate(Sampler.argmax(), max_tokens=count, stop=[]).stream_tokens()
"""
_PROGRAM = Program.compiled(FILE, TEXT)[0]
_INFO: dict[str, Any] = {
    "page_size": 8,
    "vocab_size": 256,
    "max_position": 1024,
    "max_batch_tokens": 1024,
    "bos_token": None,
    "stop_tokens": [],
    "has_chat_template": False,
}

_FACTS = {
    **dict.fromkeys(("looks_back", "counts", "has_state", "in_layers"), False),
    "beside": 0,
    "window": None,
}


def _giving(answer: Any) -> Callable[..., Any]:
    return lambda *_: answer


StandIns: TypeAlias = Sequence[tuple[ModuleType, str, Callable[..., Any]]]

_HOST: StandIns = [
    (runtime, "available_models", _giving([""])),
    (runtime, "available_traits", _giving(["sample"])),
    (runtime, "model_info", _giving(json.dumps(_INFO))),
    (runtime, "create_queue", _giving(1)),
    (runtime, "destroy_queue", _giving(None)),
    (runtime, "monotonic_now", _giving(0)),
    (runtime, "wait", lambda handles: handles),
    (runtime, "cancel", _giving(None)),
    (runtime, "random_bytes", bytes),
    (session, "send", _giving(None)),
    (tokenize, "tokenize", _giving([1])),
    (allocate, "alloc_kvpage", _giving(1)),
    (allocate, "dealloc_kvpage", _giving(None)),
    (allocate, "alloc_emb", _giving(1)),
    (allocate, "dealloc_emb", _giving(None)),
    (input_text, "embed_txt", _giving(None)),
    (forward, "forward", _giving(None)),
    (prefix_cache, "match_prefix", _giving(([], 0))),
    (prefix_cache, "insert_prefix", _giving(0)),
    (sample, "create_sampler", _giving(1)),
    (sample, "sampler_facts", _giving(json.dumps(_FACTS))),
    (sample, "destroy_sampler", _giving(None)),
    (sample, "start_run", _giving(1)),
    (sample, "next_tokens", _giving([1])),
    (sample, "end_run", _giving([])),
]


def rehearse(tokens: int, run: Callable[[], object] | None = None) -> None:
    """Runs a program that generates so many tokens, and leaves no trace of it.

    Args:
        tokens: how many.
        run: runs the program in another way than this module does.
    """
    finders = sys.meta_path[:]
    arguments = sys.argv
    modules = {name: sys.modules.get(name) for name in (program.MODULE, "__main__")}
    with standing_in(_HOST):
        if run is None:
            program.run(_PROGRAM, [str(tokens)])
        else:
            run()
        gc.collect(0)  # the context releases its handles while there is no host to release them at
    model._loaded.clear()
    sys.meta_path[:] = finders
    sys.argv = arguments
    for name, module in modules.items():
        if module is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module


@contextmanager
def standing_in(stand_ins: StandIns) -> Iterator[None]:
    """Lets functions of the contract do what others do in their place."""
    before = [(module, name, getattr(module, name)) for module, name, _ in stand_ins]
    for module, name, stand_in in stand_ins:
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)
