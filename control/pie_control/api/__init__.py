"""The contract's functions, as the guest calls them: one module per group of traits.

Every function takes the calling instance first, checks its arguments before anything changes, and
raises `ApiError` for what goes back to the guest as `code: message`. Functions that need only the
instance are a module's; the others are methods of a class made with the parts they use.
"""

from __future__ import annotations

from dataclasses import dataclass

from pie_control.api import (
    adapter,
    allocate,
    forward,
    images,
    introspect,
    offload,
    prefix,
    run,
    run_text,
    runtime,
    sample,
    session,
    text,
)
from pie_control.api.adapter import AdapterCalls
from pie_control.api.binder import implement
from pie_control.api.grammar import LONG_CALLS, GrammarCalls
from pie_control.api.images import ImageCalls
from pie_control.api.messaging import MessagingCalls
from pie_control.api.offload import OffloadCalls
from pie_control.api.run_text import RunTextCalls
from pie_control.api.runtime import GuestClocks, RuntimeCalls, SourceCalls
from pie_control.api.store import StoreCalls
from pie_control.api.tokenize import SLOW_CALLS, TokenizeCalls
from pie_control.confined.pool import ConfinedPool
from pie_control.grammar.service import GrammarService
from pie_control.http import HttpClient
from pie_control.instances.instance import Turns
from pie_control.instances.launcher import Launcher
from pie_control.instances.registry import Registry
from pie_control.instances.slow_calls import SlowCalls
from pie_control.interception.history import Durations
from pie_control.mcp import McpServers
from pie_control.messaging.bus import Bus
from pie_control.models.served import ServedModels
from pie_control.store.service import StoreService
from pie_control.timers import Timers
from pie_control.wasm import HostFunction


@dataclass(frozen=True)
class ApiParts:
    """What the functions of the contract are made with."""

    registry: Registry
    launcher: Launcher
    turns: Turns
    timers: Timers
    answers: SlowCalls
    confined: ConfinedPool
    models: ServedModels
    durations: Durations
    grammars: GrammarService
    http: HttpClient
    mcp: McpServers
    messaging: Bus
    store: StoreService
    clocks: GuestClocks


def functions(parts: ApiParts) -> tuple[HostFunction, ...]:
    """All functions of the contract. Once for a server: it has the grammars' handles forgotten."""
    models = parts.models
    grammar = GrammarCalls(models, parts.grammars, parts.turns)
    parts.registry.on_end.append(grammar.drop_instance)
    calls = RuntimeCalls(models, parts.launcher, parts.turns, parts.timers, parts.clocks)
    texts = RunTextCalls(models, parts.turns)
    tokens = TokenizeCalls(models, parts.answers, parts.confined)
    return (
        *implement("runtime", calls, runtime, suspends=("wait",)),
        *implement("source", SourceCalls(parts.launcher), suspends=("read",)),
        *implement("session", session),
        *implement("http", parts.http),
        *implement("mcp", parts.mcp),
        *implement("messaging", MessagingCalls(parts.messaging)),
        *implement("store", StoreCalls(parts.store)),
        *implement("allocate", allocate, suspends=("alloc-kvpage",), arrays=("used",)),
        *implement("forward", forward, arrays=("masks",)),
        *implement("adapter", AdapterCalls(models), adapter),
        *implement("introspect", introspect),
        *implement(
            "offload", OffloadCalls(models, parts.durations), offload, suspends=("swap-in",)
        ),
        *implement("prefix-cache", prefix, arrays=("tokens",)),
        *implement("input-text", text),
        *implement("output-text", text),
        *implement("input-image", ImageCalls(models), images),
        *implement(
            "sample", texts, sample, run, run_text, suspends=("next-tokens",), arrays=("mask",)
        ),
        *implement("grammar", grammar, suspends=LONG_CALLS),
        *implement("tokenize", tokens, suspends=SLOW_CALLS),
    )
