"""Constraints of Pie 0.4: objects that say before each token which ones may come.

Its masks are lengths of stretches, by turns left out and let in, beginning with left out.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import inferlet
from inferlet import raw
from inferlet.model import Model, Tokenizer


class Grammar(inferlet.Grammar):
    """What a text has to look like."""

    __slots__ = ()

    @classmethod
    def from_json_schema(cls, schema: str) -> Self:
        """JSON that satisfies a schema."""
        return cls("json-schema", schema)

    @classmethod
    def from_regex(cls, pattern: str) -> Self:
        """Text that a regular expression matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def from_ebnf(cls, ebnf: str) -> Self:
        """A context-free grammar, from the rule `root`."""
        return cls("ebnf", ebnf)

    @classmethod
    def json(cls) -> Self:
        """Any JSON value."""
        return cls("json-schema", "true")


class Matcher:
    """A walk through a grammar. Making one waits with the whole inferlet for the grammar."""

    def __init__(self, grammar: inferlet.Grammar, tokenizer: Tokenizer) -> None:
        """Raises PieError `invalid-argument` if the grammar is wrong."""
        model = Model.load(tokenizer.model)
        future = raw.compile_grammar(model.name, grammar.kind, grammar.text)
        raw.wait([future])
        self._grammar = raw.take_grammar(future)
        self._size = model.vocab_size
        self.reset()

    def reset(self) -> None:
        """Goes back to the start."""
        self._walk = inferlet.Matcher(raw.create_matcher(self._grammar))

    def accept_tokens(self, token_ids: Sequence[int]) -> None:
        """Goes on. Raises PieError `invalid-argument` for tokens that may not come."""
        self._walk.advance(token_ids)

    def next_token_logit_mask(self) -> list[int]:
        """Which tokens may come."""
        return lengths_of(self.bits(), self._size)

    def bits(self) -> int:
        """The same as a number."""
        return bits_of_words(self._walk.mask())

    @property
    def is_terminated(self) -> bool:
        """Whether the text must end here."""
        return self._walk.is_finished

    def __del__(self) -> None:
        if hasattr(self, "_grammar"):
            raw.release_grammar(self._grammar)


@runtime_checkable
class Constraint(Protocol):
    """Says before each token which ones may come."""

    def step(self, accepted: list[int]) -> list[int]:
        """The mask after these tokens, which follow those of the calls before; empty: all."""
        ...


@runtime_checkable
class Schema(Protocol):
    """Describes a constraint."""

    def build_constraint(self, model: Model) -> Constraint:
        """Makes it for a model's tokens."""
        ...


class GrammarConstraint:
    """A constraint by a grammar."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher

    @classmethod
    def from_grammar(cls, grammar: inferlet.Grammar, model: Model) -> Self:
        """At the grammar's start."""
        return cls(Matcher(grammar, model.tokenizer))

    @classmethod
    def from_json_schema(cls, schema: str, model: Model) -> Self:
        """By a JSON schema."""
        return cls.from_grammar(Grammar.from_json_schema(schema), model)

    @classmethod
    def json(cls, model: Model) -> Self:
        """Any JSON value."""
        return cls.from_grammar(Grammar.json(), model)

    @classmethod
    def from_regex(cls, pattern: str, model: Model) -> Self:
        """By a regular expression."""
        return cls.from_grammar(Grammar.from_regex(pattern), model)

    @classmethod
    def from_ebnf(cls, ebnf: str, model: Model) -> Self:
        """By a context-free grammar."""
        return cls.from_grammar(Grammar.from_ebnf(ebnf), model)

    def step(self, accepted: list[int]) -> list[int]:
        """As `Constraint.step`."""
        self.matcher.accept_tokens(accepted)
        return self.matcher.next_token_logit_mask()


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that satisfies a schema."""

    schema: str

    def build_constraint(self, model: Model) -> GrammarConstraint:
        """As `Schema.build_constraint`."""
        return GrammarConstraint.from_json_schema(self.schema, model)


@dataclass(frozen=True, slots=True)
class AnyJson:
    """Any JSON value."""

    def build_constraint(self, model: Model) -> GrammarConstraint:
        """As `Schema.build_constraint`."""
        return GrammarConstraint.json(model)


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that a regular expression matches as a whole."""

    pattern: str

    def build_constraint(self, model: Model) -> GrammarConstraint:
        """As `Schema.build_constraint`."""
        return GrammarConstraint.from_regex(self.pattern, model)


@dataclass(frozen=True, slots=True)
class Ebnf:
    """A context-free grammar."""

    source: str

    def build_constraint(self, model: Model) -> GrammarConstraint:
        """As `Schema.build_constraint`."""
        return GrammarConstraint.from_ebnf(self.source, model)


def allowed(constraint: Constraint, accepted: list[int]) -> int | None:
    """What a constraint lets in after some tokens, as a number; None for all."""
    if isinstance(constraint, GrammarConstraint):  # without the way over lengths
        constraint.matcher.accept_tokens(accepted)
        return constraint.matcher.bits()
    mask = constraint.step(accepted)
    return bits_of(mask) if mask else None


def ranges_of(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The stretches that a mask lets in: from, up to."""
    at = 0
    for number, length in enumerate(mask):
        if number % 2 and length:
            yield at, at + length
        at += length


def bits_of(mask: Sequence[int]) -> int:
    """A mask as a number: bit `t` lets token `t` in."""
    return sum(((1 << last - first) - 1) << first for first, last in ranges_of(mask))


def bits_of_words(words: Sequence[int]) -> int:
    """The same of 32-bit words, as `Matcher.mask` has them."""
    return int.from_bytes(array("I", words).tobytes(), "little")


def words_of(mask: int, count: int) -> list[int]:
    """32-bit words of a number, for `count` tokens."""
    size = -(-count // 32)
    return array("I", (mask & (1 << count) - 1).to_bytes(4 * size, "little")).tolist()


def lengths_of(mask: int, count: int) -> list[int]:
    """A number as lengths, for `count` tokens."""
    digits = f"{mask & (1 << count) - 1:0{count}b}"[::-1]
    found = [len(stretch[0]) for stretch in re.finditer("0+|1+", digits)]
    return [0, *found] if digits[:1] == "1" else found
