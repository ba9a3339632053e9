"""The contract's functions, as the guest calls them: one module a group of traits.

Every function takes the calling instance first, checks its arguments before anything changes, and
raises `ApiError` for what goes back to the guest as `code: message`.
"""

from pie_control.api import (
    adapter,
    allocate,
    forward,
    grammar,
    http,
    images,
    introspect,
    mcp,
    messaging,
    offload,
    prefix,
    runtime,
    sample,
    session,
    source,
    store,
    text,
    tokenize,
)
from pie_control.wasm import HostFunction

FUNCTIONS: tuple[HostFunction, ...] = (
    *runtime.FUNCTIONS,
    *source.FUNCTIONS,
    *session.FUNCTIONS,
    *http.FUNCTIONS,
    *mcp.FUNCTIONS,
    *messaging.FUNCTIONS,
    *store.FUNCTIONS,
    *allocate.FUNCTIONS,
    *forward.FUNCTIONS,
    *adapter.FUNCTIONS,
    *introspect.FUNCTIONS,
    *offload.FUNCTIONS,
    *prefix.FUNCTIONS,
    *text.FUNCTIONS,
    *images.FUNCTIONS,
    *sample.FUNCTIONS,
    *grammar.FUNCTIONS,
    *tokenize.FUNCTIONS,
)
