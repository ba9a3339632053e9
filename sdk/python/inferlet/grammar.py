"""Grammars that a generation keeps to, and walks through them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferlet import raw
from inferlet._loop import ready
from inferlet.errors import PieError
from inferlet.raw._convert import as_text, check_several

if TYPE_CHECKING:
    from inferlet.model import Model

CACHED = 32  # compiled grammars that an instance holds on to
LONGEST_ADVANCE = 1024  # tokens that the server takes in one call


@dataclass(frozen=True, slots=True)
class Grammar:
    """A form that a text is held to. Make one with a class method::

        grammar = Grammar.json_schema({"type": "object", "properties": {"n": {"type": "integer"}}})
        text = await ctx.generate(grammar=grammar).collect_text()

    It is compiled by the server, once for each model, when it is first used.
    """

    kind: str
    text: str

    @classmethod
    def json_schema(
        cls,
        schema: Mapping[str, Any] | bool | str,
        *,
        strict: bool = False,
        any_whitespace: bool = False,
        any_key_order: bool = False,
    ) -> Grammar:
        """JSON that satisfies a schema, given as an object or as its text.

        Args:
            schema: the schema.
            strict: whether objects and lists have nothing but what is named, where the schema does
                not say.
            any_whitespace: whether there may be any white space; else it is as `json.dumps` writes
                it, which leaves a weak model less to waste tokens on.
            any_key_order: whether keys may come in any order, instead of the schema's; for objects
                of at most 5 keys.
        """
        options = {
            **({"strict": True} if strict else {}),
            **({"any_whitespace": True} if any_whitespace else {}),
            **({"any_key_order": True} if any_key_order else {}),
        }
        if options:
            given = json.loads(schema) if isinstance(schema, str) else schema
            if isinstance(given, Mapping):
                guidance = {**given.get("x-guidance", {}), **options}
                schema = {**given, "x-guidance": guidance}
        return cls("json-schema", schema if isinstance(schema, str) else json.dumps(schema))

    @classmethod
    def json(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that a regular expression in Rust's syntax matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A context-free grammar (EBNF) in Lark's syntax, from the rule `start`."""
        return cls("lark", text)

    @classmethod
    def ebnf(cls, text: str) -> Grammar:
        """A context-free grammar as llama.cpp writes it (GBNF), from the rule `root`."""
        return cls("ebnf", text)

    @classmethod
    def sequence(cls, parts: Iterable[Grammar]) -> Grammar:
        """Each grammar's text behind that of the one before."""
        return cls("sequence", json.dumps([(part.kind, part.text) for part in parts]))

    @classmethod
    def choice(cls, options: Iterable[str]) -> Grammar:
        """One of some texts."""
        check_several("options", options)
        texts = [as_text(option) for option in options]
        if not texts:
            raise ValueError("a choice between no texts")
        # Of one terminal there may be any number: each of a rule would be an item of the parser.
        return cls("lark", "start: ONE\nONE: " + " | ".join(map(json.dumps, texts)))

    async def compile(self, model: Model) -> int:
        """The handle of the compiled grammar, for the raw functions.

        Raises:
            PieError: `invalid-argument` if it is wrong, `limit-exceeded` if it is too large.
        """
        key = (model.name, self.kind, self.text)
        while (handle := _compiled.get(key)) is None:
            ended = _compiling.get(key)
            if ended is None:
                return await _compile(key)
            await ended.wait()  # whether it went well or not: then the next task tries itself
        return handle

    async def matcher(self, model: Model) -> Matcher:
        """A matcher at the grammar's start. Raises PieError as `compile`."""
        return Matcher(raw.create_matcher(await self.compile(model)))


_compiled: dict[tuple[str, str, str], int] = {}
_compiling: dict[tuple[str, str, str], asyncio.Event] = {}  # set when a task's attempt has ended


async def _compile(key: tuple[str, str, str]) -> int:
    """Compiles a grammar that no other task compiles, and holds on to its handle."""
    ended = _compiling[key] = asyncio.Event()
    try:
        future = raw.compile_grammar(*key)
        await ready(future)
        if len(_compiled) >= CACHED:
            raw.release_grammar(_compiled.pop(next(iter(_compiled))))
        handle = _compiled[key] = raw.take_grammar(future)
    finally:
        del _compiling[key]
        ended.set()
    return handle


class Matcher:
    """One walk through a grammar, for programs that choose tokens themselves."""

    __slots__ = ("handle",)

    def __init__(self, handle: int) -> None:
        """Takes over a matcher of `raw.create_matcher`."""
        self.handle = handle

    def advance(self, tokens: Sequence[int]) -> bool:
        """Consumes tokens; whether the text may end then.

        Raises:
            PieError: `invalid-argument` if one is not allowed; then none of this call's is consumed
                (of more than 1024, those of the first thousands are).
        """
        accepting = self.is_accepting
        for start in range(0, len(tokens), LONGEST_ADVANCE):
            accepting = raw.advance(self.handle, list(tokens[start : start + LONGEST_ADVANCE]))
        return accepting

    def rollback(self, count: int) -> None:
        """Takes the last tokens back."""
        raw.rollback(self.handle, count)

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, from the first on, `advance` would consume."""
        return raw.count_allowed(self.handle, list(tokens))

    def forced(self) -> list[int]:
        """The tokens that must come next, possibly none."""
        return raw.grammar_forced(self.handle)

    def mask(self) -> list[int]:
        """The tokens allowed next: bit `t % 32` of word `t // 32` is token `t`."""
        return raw.grammar_mask(self.handle)

    def allows(self, token: int) -> bool:
        """True if a token is allowed next."""
        return self.count_allowed([token]) == 1

    @property
    def is_accepting(self) -> bool:
        """True if the text may end here."""
        return raw.is_accepting(self.handle)

    @property
    def is_finished(self) -> bool:
        """True if the text must end here, or has ended with a stop token."""
        return raw.is_finished(self.handle)

    def close(self) -> None:
        """Gives the matcher back. A second call does nothing."""
        handle, self.handle = self.handle, 0
        if handle:
            raw.destroy_matcher(handle)

    def __del__(self) -> None:
        # Half made, or gone with its context or its worker.
        with suppress(AttributeError, PieError):
            self.close()
