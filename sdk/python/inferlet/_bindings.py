# Generated from sdk/wit/inferlet.wit by `python -m codegen`; do not edit.

"""The contract's interfaces as the component's generated bindings offer them.

They exist only inside the server. Elsewhere (an editor, a type checker, a unit test) the same names
are there, so that the SDK imports, and the first call says what is wrong.
"""

from __future__ import annotations

from typing import Any, NoReturn

from inferlet.errors import NotInServerError


class _Absent:
    """Stands for an interface outside the server."""

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> NoReturn:
            raise NotInServerError

        return call


try:
    from componentize_py_types import Err
    from wit_world.imports import runtime, session, http, mcp, messaging, store, allocate, forward, adapter, introspect, offload, prefix_cache, input_text, input_image, tokenize, output_text, sample, grammar

    INSIDE = True
except ImportError:

    class Err(Exception):  # type: ignore[no-redef]
        """The error case of a contract function."""

        value: Any

    runtime = _Absent()
    session = _Absent()
    http = _Absent()
    mcp = _Absent()
    messaging = _Absent()
    store = _Absent()
    allocate = _Absent()
    forward = _Absent()
    adapter = _Absent()
    introspect = _Absent()
    offload = _Absent()
    prefix_cache = _Absent()
    input_text = _Absent()
    input_image = _Absent()
    tokenize = _Absent()
    output_text = _Absent()
    sample = _Absent()
    grammar = _Absent()
    INSIDE = False

__all__ = ['Err', 'INSIDE', 'runtime', 'session', 'http', 'mcp', 'messaging', 'store', 'allocate', 'forward', 'adapter', 'introspect', 'offload', 'prefix_cache', 'input_text', 'input_image', 'tokenize', 'output_text', 'sample', 'grammar']
