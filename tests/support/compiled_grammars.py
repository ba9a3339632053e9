"""Grammars, compiled by the service."""

from __future__ import annotations

import trio

from pie_control.api.grammar.matcher import Grammar
from pie_control.api.grammar.service import GrammarService
from pie_control.errors import ApiError
from pie_control.models.tokenizer import TextCodec
from pie_py.wire.plan import ModelDescription


async def compile_grammar(
    service: GrammarService,
    model: ModelDescription,
    codec: TextCodec,
    kind: str,
    text: str,
    user: str = "",
) -> Grammar:
    """Waits for a grammar; who is cancelled gives it up. Raises its `ApiError`."""
    found: Grammar | ApiError | None = service.compiled(model.name, kind, text, user)
    came = trio.Event()

    def done(result: Grammar | ApiError) -> None:
        nonlocal found
        found = result
        came.set()

    if found is None:
        give_up = service.start(model, codec, kind, text, user, done)
        try:
            await came.wait()
        finally:
            give_up()
    if isinstance(found, ApiError):
        raise found
    assert found is not None
    return found
