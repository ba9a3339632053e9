"""Kinds of a durable instance's calls: of which the journal has the answers, and others."""

from __future__ import annotations

from pie_control.instances.futures import FutureKind

# Their answers are the world's.
ANSWERED = frozenset(
    {
        "runtime.instance-id",
        "runtime.version",
        "runtime.available-models",
        "runtime.available-traits",
        "runtime.model-info",
        "runtime.now",
        "runtime.random-bytes",
        "mcp.mcp-servers",
        "allocate.pool-stats",
        "allocate.list-exports",
        "adapter.available-adapters",
        "adapter.weights-version",
        "offload.kv-costs",
        "offload.advise",
        "sample.run-versions",
        "sample.run-logprobs",  # another batch may round them otherwise
        "tokenize.apply-chat-template",  # a template may tell the date
        "http.response-url",
        "http.close-body",
    }
)

# They open futures of what the server computes.
COMPUTED = frozenset(
    {
        "runtime.synchronize",
        "sample.sample",
        "sample.sample-masked",
        "sample.step",
        "sample.run-progress",
        "sample.run-text",
        "sample.read-state",
        "output-text.get-next-dist",
        "output-text.get-hidden",
        "introspect.forward-with-attention",
        "encode.encode",
        "grammar.compile-grammar",
        "grammar.sample-constrained",
    }
)
QUIET_TAKES = frozenset({"runtime.synchronize", "sample.run-progress", "grammar.compile-grammar"})

# They open futures of something outside.
OUTSIDE = {
    "runtime.sleep": FutureKind.DONE,
    "runtime.launch": FutureKind.TEXT,
    "session.writable": FutureKind.DONE,
    "session.receive": FutureKind.TEXT,
    "session.receive-blob": FutureKind.BLOB,
    "store.store-get": FutureKind.BLOB,
    "store.store-set": FutureKind.DONE,
    "store.store-delete": FutureKind.DONE,
    "store.store-list": FutureKind.TEXTS,
    "store.store-room": FutureKind.DONE,
    "store.store-commit": FutureKind.DONE,
    "http.http-get": FutureKind.RESPONSE,
    "http.http-post": FutureKind.RESPONSE,
    "http.http-request": FutureKind.RESPONSE,
    "http.read-body": FutureKind.BLOB,
    "messaging.next-message": FutureKind.TEXT,
    "messaging.pull": FutureKind.TEXT,
    "messaging.broadcast-room": FutureKind.DONE,
    "messaging.push-room": FutureKind.DONE,
    "mcp.mcp-list-tools": FutureKind.TEXT,
    "mcp.mcp-call-tool": FutureKind.TEXT,
}
