"""Interface `grammar`: tokens that a grammar allows."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import grammar as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_text, as_u32, as_u32s


def compile_grammar(model: str, kind: str, text: str) -> int:
    """Compiles a grammar for a model's tokens; consume the future with `take_grammar`. `kind` is
    `json-schema` (white space as Python's `json` writes it, unless the schema's `x-guidance` says
    otherwise), `regex` (Rust's syntax, over the whole text), or `lark` (EBNF in Lark's syntax, with
    the rule `start`). The same text is compiled once.
    Errors: `unknown-model`, `invalid-argument`, `limit-exceeded`; of the future: `invalid-argument`
    (the grammar is wrong), `limit-exceeded` (too large or too slow), `unsupported`.
    """
    try:
        answer: int = interface.compile_grammar(as_text(model), as_text(kind), as_text(text))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_grammar(future: int) -> int:
    """Consumes a ready future of a grammar and returns the grammar's handle.
    Errors: `invalid-handle`, `not-ready`, `limit-exceeded`, or the error of what it stood for.
    """
    try:
        answer: int = interface.take_grammar(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def release_grammar(grammar: int) -> None:
    """Ends a grammar's handle; its matchers go on. Errors: `invalid-handle`."""
    try:
        interface.release_grammar(as_u32(grammar))
    except Err as error:
        raise PieError(error.value) from None


def create_matcher(grammar: int) -> int:
    """A matcher at a grammar's beginning. Errors: `invalid-handle`, `limit-exceeded`."""
    try:
        answer: int = interface.create_matcher(as_u32(grammar))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def destroy_matcher(matcher: int) -> None:
    """Ends a matcher. Errors: `invalid-handle`."""
    try:
        interface.destroy_matcher(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None


def advance(matcher: int, tokens: list[int]) -> bool:
    """Consumes tokens, all or none of them, at most 1024; whether the text may end then.
    Errors: `invalid-handle`, `invalid-argument` (a token that is not allowed), `busy`,
    `limit-exceeded` (the grammar is too complex).
    """
    try:
        answer: bool = interface.advance(as_u32(matcher), as_u32s(tokens))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def rollback(matcher: int, count: int) -> None:
    """Takes the last `count` tokens back. Errors: `invalid-handle`, `invalid-argument`, `busy`."""
    try:
        interface.rollback(as_u32(matcher), as_u32(count))
    except Err as error:
        raise PieError(error.value) from None


def count_allowed(matcher: int, tokens: list[int]) -> int:
    """How many of the tokens, from the first on, `advance` would consume; nothing changes.
    Errors: `invalid-handle`, `invalid-argument`, `busy`.
    """
    try:
        answer: int = interface.count_allowed(as_u32(matcher), as_u32s(tokens))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def is_accepting(matcher: int) -> bool:
    """Whether the text may end here. Errors: `invalid-handle`."""
    try:
        answer: bool = interface.is_accepting(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def is_finished(matcher: int) -> bool:
    """Whether the text must end here, or has ended with a stop token. Errors: `invalid-handle`."""
    try:
        answer: bool = interface.is_finished(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def grammar_mask(matcher: int) -> list[int]:
    """The tokens allowed next: bit `t % 32` of word `t / 32` is token `t`. As `sample_masked` takes it.
    Errors: `invalid-handle`, `busy`, `limit-exceeded` (the grammar is too complex).
    """
    try:
        answer: list[int] = interface.grammar_mask(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def grammar_forced(matcher: int) -> list[int]:
    """The tokens that follow whatever is chosen, possibly none, at most 1024 at
    once; they are not consumed.
    Errors: `invalid-handle`, `busy`.
    """
    try:
        answer: list[int] = interface.grammar_forced(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def sample_constrained(queue: int, embed: int, sampler: int, matcher: int) -> int:
    """As `sample.sample`, among the tokens that the matcher allows; the matcher then consumes the one
    chosen by itself, before the future is ready. Consume the future with `sample.take-sample`.
    Errors: as `sample.sample`, and `busy`.
    """
    try:
        answer: int = interface.sample_constrained(
            as_u32(queue), as_u32(embed), as_u32(sampler), as_u32(matcher)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer
