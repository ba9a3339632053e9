# Generated from sdk/wit/inferlet.wit by `python -m codegen`; do not edit.

"""Parameters and results of the contract's functions, by interface and by function."""

from __future__ import annotations

from typing import NamedTuple

from pie_control.wasm import (
    BOOL,
    F32,
    S32,
    STRING,
    STRING_LIST,
    U8_LIST,
    U32,
    U32_LIST,
    U64,
    Enum,
    List,
    Tuple,
    Type,
)


class Signature(NamedTuple):
    """Types of a function; `fallible` if it returns `result<T, string>`, `result` is `T` then."""

    params: dict[str, Type]
    result: Type | None
    fallible: bool


DETAIL = Enum(("total", "layers", "heads"))
LOG_LEVEL = Enum(("debug", "info", "warning", "error"))

SIGNATURES: dict[str, dict[str, Signature]] = {
    "runtime": {
        "get-arg": Signature({}, STRING_LIST, fallible=False),
        "instance-id": Signature({}, STRING, fallible=False),
        "user": Signature({}, STRING, fallible=False),
        "version": Signature({}, STRING, fallible=False),
        "available-models": Signature({}, STRING_LIST, fallible=False),
        "available-traits": Signature({"model": STRING}, STRING_LIST, fallible=True),
        "model-info": Signature({"model": STRING}, STRING, fallible=True),
        "create-queue": Signature({"model": STRING}, U32, fallible=True),
        "destroy-queue": Signature({"queue": U32}, None, fallible=True),
        "synchronize": Signature({"queue": U32}, U32, fallible=True),
        "set-queue-priority": Signature({"queue": U32, "priority": S32}, None, fallible=True),
        "wait": Signature({"futures": U32_LIST}, U32_LIST, fallible=True),
        "take": Signature({"future": U32}, None, fallible=True),
        "take-text": Signature({"future": U32}, STRING, fallible=True),
        "take-texts": Signature({"future": U32}, STRING_LIST, fallible=True),
        "take-blob": Signature({"future": U32}, U8_LIST, fallible=True),
        "cancel": Signature({"future": U32}, None, fallible=True),
        "now": Signature({}, U64, fallible=False),
        "monotonic-now": Signature({}, U64, fallible=False),
        "sleep": Signature({"nanoseconds": U64}, U32, fallible=True),
        "random-bytes": Signature({"count": U32}, U8_LIST, fallible=True),
        "log": Signature({"level": LOG_LEVEL, "message": STRING}, None, fallible=False),
        "launch": Signature({"program": STRING, "args": STRING_LIST}, U32, fallible=True),
    },
    "session": {
        "send": Signature({"message": STRING}, None, fallible=True),
        "send-blob": Signature({"data": U8_LIST}, None, fallible=True),
        "writable": Signature({}, U32, fallible=True),
        "receive": Signature({}, U32, fallible=True),
        "receive-blob": Signature({}, U32, fallible=True),
    },
    "messaging": {
        "broadcast": Signature({"topic": STRING, "message": STRING}, U32, fallible=True),
        "broadcast-room": Signature({"topic": STRING}, U32, fallible=True),
        "subscribe": Signature({"topic": STRING}, U32, fallible=True),
        "unsubscribe": Signature({"subscription": U32}, None, fallible=True),
        "next-message": Signature({"subscription": U32}, U32, fallible=True),
        "push": Signature({"topic": STRING, "message": STRING}, None, fallible=True),
        "push-room": Signature({"topic": STRING}, U32, fallible=True),
        "pull": Signature({"topic": STRING}, U32, fallible=True),
    },
    "store": {
        "store-get": Signature({"key": STRING}, U32, fallible=True),
        "store-set": Signature({"key": STRING, "value": U8_LIST}, U32, fallible=True),
        "store-delete": Signature({"key": STRING}, U32, fallible=True),
        "store-list": Signature(
            {"prefix": STRING, "after": STRING, "limit": U32}, U32, fallible=True
        ),
        "store-room": Signature({}, U32, fallible=True),
        "store-commit": Signature(
            {
                "expected": List(Tuple(STRING, U8_LIST)),
                "absent": STRING_LIST,
                "writes": List(Tuple(STRING, U8_LIST)),
                "deletes": STRING_LIST,
            },
            U32,
            fallible=True,
        ),
    },
    "http": {
        "http-get": Signature(
            {"url": STRING, "headers": List(Tuple(STRING, STRING))}, U32, fallible=True
        ),
        "http-post": Signature(
            {"url": STRING, "headers": List(Tuple(STRING, STRING)), "body": U8_LIST},
            U32,
            fallible=True,
        ),
        "http-request": Signature(
            {
                "method": STRING,
                "url": STRING,
                "headers": List(Tuple(STRING, STRING)),
                "body": U8_LIST,
                "timeout_ms": U32,
            },
            U32,
            fallible=True,
        ),
        "take-response": Signature(
            {"future": U32}, Tuple(U32, List(Tuple(STRING, STRING)), U32), fallible=True
        ),
        "read-body": Signature({"body": U32, "most": U32}, U32, fallible=True),
        "response-url": Signature({"body": U32}, STRING, fallible=True),
        "close-body": Signature({"body": U32}, None, fallible=True),
    },
    "mcp": {
        "mcp-servers": Signature({}, STRING_LIST, fallible=False),
        "mcp-list-tools": Signature({"server": STRING}, U32, fallible=True),
        "mcp-call-tool": Signature(
            {"server": STRING, "tool": STRING, "arguments": STRING}, U32, fallible=True
        ),
    },
    "allocate": {
        "alloc-kvpage": Signature({"queue": U32, "count": U32}, U32, fallible=True),
        "dealloc-kvpage": Signature({"queue": U32, "pages": U32_LIST}, None, fallible=True),
        "export-kvpage": Signature(
            {"queue": U32, "pages": U32_LIST, "name": STRING, "shared": BOOL}, None, fallible=True
        ),
        "import-kvpage": Signature({"queue": U32, "name": STRING}, U32_LIST, fallible=True),
        "list-exports": Signature({"queue": U32}, STRING_LIST, fallible=True),
        "release-export": Signature({"queue": U32, "name": STRING}, None, fallible=True),
        "expire-export": Signature(
            {"queue": U32, "name": STRING, "nanoseconds": U64}, None, fallible=True
        ),
        "retain-kvpage": Signature(
            {"queue": U32, "pages": U32_LIST, "priority": S32, "nanoseconds": U64},
            None,
            fallible=True,
        ),
        "copy-kvpage": Signature(
            {
                "queue": U32,
                "source_page": U32,
                "source_slot": U32,
                "target_page": U32,
                "target_slot": U32,
                "count": U32,
            },
            None,
            fallible=True,
        ),
        "kvpage-used": Signature({"queue": U32, "pages": U32_LIST}, U32_LIST, fallible=True),
        "truncate-kvpage": Signature(
            {"queue": U32, "pages": U32_LIST, "used": U32_LIST}, None, fallible=True
        ),
        "alloc-emb": Signature({"queue": U32, "count": U32}, U32, fallible=True),
        "dealloc-emb": Signature({"queue": U32, "embeds": U32_LIST}, None, fallible=True),
        "copy-emb": Signature(
            {"queue": U32, "sources": U32_LIST, "targets": U32_LIST, "positions": U32_LIST},
            None,
            fallible=True,
        ),
        "pool-stats": Signature({"queue": U32}, STRING, fallible=True),
    },
    "forward": {
        "forward": Signature(
            {
                "queue": U32,
                "input_pages": U32_LIST,
                "input_embeds": U32_LIST,
                "output_pages": U32_LIST,
                "output_embeds": U32_LIST,
                "mask": U32_LIST,
            },
            None,
            fallible=True,
        ),
        "mask-kvpage": Signature(
            {"queue": U32, "pages": U32_LIST, "masks": U32_LIST}, None, fallible=True
        ),
        "shift-kvpage": Signature(
            {"queue": U32, "pages": U32_LIST, "distance": S32}, None, fallible=True
        ),
    },
    "input-text": {
        "embed-txt": Signature(
            {"queue": U32, "tokens": U32_LIST, "positions": U32_LIST, "embeds": U32_LIST},
            None,
            fallible=True,
        ),
    },
    "input-image": {
        "num-embs-needed": Signature(
            {"model": STRING, "width": U32, "height": U32}, U32, fallible=True
        ),
        "num-positions-needed": Signature(
            {"model": STRING, "width": U32, "height": U32}, U32, fallible=True
        ),
        "image-size": Signature({"image": U8_LIST}, Tuple(U32, U32), fallible=True),
        "embed-img": Signature(
            {"queue": U32, "image": U8_LIST, "positions": U32_LIST, "embeds": U32_LIST},
            None,
            fallible=True,
        ),
    },
    "adapter": {
        "available-adapters": Signature({"model": STRING}, STRING_LIST, fallible=True),
        "forward-with-adapter": Signature(
            {
                "queue": U32,
                "adapter": STRING,
                "input_pages": U32_LIST,
                "input_embeds": U32_LIST,
                "output_pages": U32_LIST,
                "output_embeds": U32_LIST,
                "mask": U32_LIST,
            },
            None,
            fallible=True,
        ),
    },
    "introspect": {
        "forward-with-attention": Signature(
            {
                "queue": U32,
                "input_pages": U32_LIST,
                "input_embeds": U32_LIST,
                "output_pages": U32_LIST,
                "output_embeds": U32_LIST,
                "mask": U32_LIST,
                "observed": U32,
                "detail": DETAIL,
                "adapter": STRING,
            },
            U32,
            fallible=True,
        ),
        "take-attention": Signature({"future": U32}, Tuple(U32, List(F32)), fallible=True),
    },
    "offload": {
        "swap-out": Signature({"queue": U32, "pages": U32_LIST}, None, fallible=True),
        "swap-in": Signature({"queue": U32, "pages": U32_LIST}, None, fallible=True),
        "discard": Signature({"queue": U32, "pages": U32_LIST}, None, fallible=True),
        "kv-costs": Signature({"model": STRING}, STRING, fallible=True),
        "advise": Signature(
            {"queue": U32, "pages": U32_LIST, "wait": STRING}, STRING, fallible=True
        ),
        "note-wait": Signature({"tool": STRING, "nanoseconds": U64}, None, fallible=True),
    },
    "prefix-cache": {
        "match-prefix": Signature(
            {"queue": U32, "adapter": STRING, "tokens": U32_LIST},
            Tuple(U32_LIST, U32),
            fallible=True,
        ),
        "insert-prefix": Signature({"queue": U32, "pages": U32_LIST}, U32, fallible=True),
    },
    "tokenize": {
        "tokenize": Signature({"model": STRING, "text": STRING}, U32_LIST, fallible=True),
        "detokenize": Signature({"model": STRING, "tokens": U32_LIST}, STRING, fallible=True),
        "get-vocabs": Signature({"model": STRING}, List(U8_LIST), fallible=True),
        "special-tokens": Signature({"model": STRING}, List(Tuple(STRING, U32)), fallible=True),
        "apply-chat-template": Signature(
            {"model": STRING, "messages": STRING, "add_generation_prompt": BOOL},
            STRING,
            fallible=True,
        ),
    },
    "output-text": {
        "get-next-dist": Signature({"queue": U32, "embed": U32, "k": U32}, U32, fallible=True),
        "take-dist": Signature({"future": U32}, Tuple(U32_LIST, List(F32)), fallible=True),
        "get-hidden": Signature({"queue": U32, "embeds": U32_LIST}, U32, fallible=True),
        "take-hidden": Signature({"future": U32}, List(F32), fallible=True),
    },
    "sample": {
        "create-sampler": Signature({"queue": U32, "parameters": STRING}, U32, fallible=True),
        "sampler-facts": Signature({"queue": U32, "sampler": U32}, STRING, fallible=True),
        "destroy-sampler": Signature({"queue": U32, "sampler": U32}, None, fallible=True),
        "feed-sampler": Signature(
            {"queue": U32, "sampler": U32, "tokens": U32_LIST, "generated": BOOL},
            None,
            fallible=True,
        ),
        "read-state": Signature({"queue": U32, "sampler": U32}, U32, fallible=True),
        "write-state": Signature(
            {"queue": U32, "sampler": U32, "state": STRING}, None, fallible=True
        ),
        "mix-logits": Signature(
            {"queue": U32, "embed": U32, "sampler_queue": U32, "sampler": U32}, None, fallible=True
        ),
        "sample": Signature({"queue": U32, "embed": U32, "sampler": U32}, U32, fallible=True),
        "sample-masked": Signature(
            {"queue": U32, "embed": U32, "sampler": U32, "mask": U32_LIST}, U32, fallible=True
        ),
        "take-sample": Signature(
            {"future": U32}, Tuple(U32, F32, U32_LIST, List(F32)), fallible=True
        ),
        "embed-sampled": Signature(
            {"queue": U32, "sampler": U32, "position": U32, "embed": U32}, None, fallible=True
        ),
        "step": Signature(
            {
                "queue": U32,
                "sampler": U32,
                "position": U32,
                "embed": U32,
                "input_pages": U32_LIST,
                "output_page": U32,
                "adapter": STRING,
            },
            U32,
            fallible=True,
        ),
        "start-run": Signature(
            {
                "queue": U32,
                "sampler": U32,
                "embed": U32,
                "position": U32,
                "own_embed": U32,
                "input_pages": U32_LIST,
                "output_pages": U32_LIST,
                "adapter": STRING,
                "most": U32,
                "stops": U32_LIST,
            },
            U32,
            fallible=True,
        ),
        "speculate": Signature(
            {"queue": U32, "run": U32, "text": U32_LIST, "most": U32}, None, fallible=True
        ),
        "speculate-with": Signature(
            {"queue": U32, "run": U32, "draft_queue": U32, "draft_run": U32, "most": U32},
            None,
            fallible=True,
        ),
        "run-progress": Signature({"queue": U32, "run": U32, "count": U32}, U32, fallible=True),
        "take-tokens": Signature({"queue": U32, "run": U32}, U32_LIST, fallible=True),
        "next-tokens": Signature({"queue": U32, "run": U32, "count": U32}, U32_LIST, fallible=True),
        "run-text": Signature(
            {
                "queue": U32,
                "run": U32,
                "before": U32_LIST,
                "ends": STRING_LIST,
                "hidden": U32_LIST,
                "to_client": BOOL,
            },
            U32,
            fallible=True,
        ),
        "take-run-text": Signature({"future": U32}, Tuple(STRING, U32, U32), fallible=True),
        "end-run": Signature({"queue": U32, "run": U32, "count": U32}, U32_LIST, fallible=True),
    },
    "grammar": {
        "compile-grammar": Signature(
            {"model": STRING, "kind": STRING, "text": STRING}, U32, fallible=True
        ),
        "take-grammar": Signature({"future": U32}, U32, fallible=True),
        "release-grammar": Signature({"grammar": U32}, None, fallible=True),
        "create-matcher": Signature({"grammar": U32}, U32, fallible=True),
        "destroy-matcher": Signature({"matcher": U32}, None, fallible=True),
        "advance": Signature({"matcher": U32, "tokens": U32_LIST}, BOOL, fallible=True),
        "rollback": Signature({"matcher": U32, "count": U32}, None, fallible=True),
        "count-allowed": Signature({"matcher": U32, "tokens": U32_LIST}, U32, fallible=True),
        "is-accepting": Signature({"matcher": U32}, BOOL, fallible=True),
        "is-finished": Signature({"matcher": U32}, BOOL, fallible=True),
        "grammar-mask": Signature({"matcher": U32}, U32_LIST, fallible=True),
        "grammar-forced": Signature({"matcher": U32}, U32_LIST, fallible=True),
        "sample-constrained": Signature(
            {"queue": U32, "embed": U32, "sampler": U32, "matcher": U32}, U32, fallible=True
        ),
    },
    "source": {
        "is-early": Signature({}, BOOL, fallible=False),
        "read": Signature({}, Tuple(STRING, STRING, STRING, STRING_LIST), fallible=False),
        "keep": Signature({"code": STRING}, None, fallible=False),
    },
}
