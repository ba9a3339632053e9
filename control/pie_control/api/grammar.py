"""Trait `grammar`: tokens that keep to a JSON schema, a regular expression or a grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from pie_control.api.binder import implement
from pie_control.api.runtime import queue_of
from pie_control.api.sample import enqueue_sample
from pie_control.errors import ApiError
from pie_control.grammar import Grammar, Matcher
from pie_control.grammar.matcher import MOST_FORCED
from pie_control.grammar.turns import Owner
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance, State
from pie_control.wasm import SUSPENDED

MAX_TOKENS = MOST_FORCED  # of one call
# A token takes a microsecond as a rule, and some milliseconds in a grammar made for that.
INLINE_TOKENS = 8


def compile_grammar(instance: Instance, model: str, kind: str, text: str) -> int:
    """Compiles a grammar in a thread and opens a future of it."""
    host = instance.host
    description, codec = host.service(model).description, host.codec(model)
    host.grammars.check(kind, text)
    future = instance.futures.create(FutureKind.GRAMMAR)
    kept = host.grammars.kept(model, kind, text)
    if kept is not None:
        future.resolve(kept)
        return future.handle
    user, scope = instance.user, trio.CancelScope()
    future.on_cancel = scope.cancel

    async def run() -> None:
        with scope:
            try:
                future.resolve(await host.grammars.compile(description, codec, kind, text, user))
            except ApiError as error:
                future.fail(error)
            except Exception as error:
                future.fail(ApiError("internal", f"{type(error).__name__}: {error}"))

    host.lifecycle.start_soon(run)
    return future.handle


def take_grammar(instance: Instance, future: int) -> int:
    """Consumes a future of a grammar and returns the grammar's handle."""
    instance.grammars.check_room()
    grammar: Grammar = instance.futures.take(future, FutureKind.GRAMMAR)
    return instance.grammars.add(grammar)


def release_grammar(instance: Instance, grammar: int) -> None:
    """Ends a grammar's handle; its matchers go on."""
    instance.grammars.remove(grammar)


def create_matcher(instance: Instance, grammar: int) -> int:
    """A walk from a grammar's beginning."""
    table = instance.grammars
    found = table.grammar(grammar)
    table.check_matcher_room()
    owner = Owner(instance.user, instance.id)
    return table.add_matcher(found.matcher(instance.host.executor.give_another, owner))


def destroy_matcher(instance: Instance, matcher: int) -> None:
    """Ends a matcher; a sample that is under way with it goes on."""
    instance.grammars.remove_matcher(matcher)


def advance(instance: Instance, matcher: int, tokens: list[int]) -> Any:
    """Consumes tokens; whether the text may end then."""
    _check_count(tokens)

    def work(found: Matcher) -> bool:
        found.advance(tokens)
        return found.accepting

    def begin_mask(found: Matcher) -> None:
        if not found.finished:
            found.mask()  # the thread has it ready when the model has run the tokens

    return _do(instance, matcher, work, begin_mask, long=len(tokens) > INLINE_TOKENS)


def rollback(instance: Instance, matcher: int, count: int) -> Any:
    """Takes the last tokens back."""
    return _do(instance, matcher, lambda found: found.rollback(count))


def count_allowed(instance: Instance, matcher: int, tokens: list[int]) -> Any:
    """How many of the tokens could be consumed."""
    _check_count(tokens)
    return _do(
        instance,
        matcher,
        lambda found: found.count_allowed(tokens),
        long=len(tokens) > INLINE_TOKENS,
    )


def is_accepting(instance: Instance, matcher: int) -> bool:
    """Whether the text may end here."""
    return instance.grammars.matcher(matcher).accepting


def is_finished(instance: Instance, matcher: int) -> bool:
    """Whether the text must end here, or has ended."""
    return instance.grammars.matcher(matcher).finished


def grammar_mask(instance: Instance, matcher: int) -> Any:
    """The mask of the next token."""
    found = instance.grammars.matcher(matcher)
    found.check_free()
    mask = found.mask()

    def answer(found: Matcher) -> Any:
        if mask.error is not None:
            raise ApiError("limit-exceeded", mask.error)
        return mask.words

    return _do(instance, matcher, answer)


def grammar_forced(instance: Instance, matcher: int) -> Any:
    """The tokens that follow whatever is chosen."""
    long = not instance.grammars.matcher(matcher).foresees
    return _do(instance, matcher, lambda found: found.forced(), long=long)


def sample_constrained(
    instance: Instance, queue: int, embed: int, sampler: int, matcher: int
) -> int:
    """Queues a choice among the tokens that the grammar allows; the matcher follows it."""
    target = queue_of(instance, queue, "sample")
    found = instance.grammars.matcher(matcher)
    found.check_free()
    model = target.service.description.name
    if found.model != model:
        raise ApiError(
            "invalid-argument", f"the matcher is of model {found.model!r}, the queue of {model!r}"
        )
    if found.ended:
        raise ApiError(
            "invalid-argument", "the text has ended with a stop token; take it back to go on"
        )
    found.sampling = True
    try:
        return enqueue_sample(instance, target, embed, sampler, found.mask(), found.on_token)
    except ApiError:
        found.sampling = False
        raise


def _check_count(tokens: list[int]) -> None:
    if len(tokens) > MAX_TOKENS:
        raise ApiError(
            "invalid-argument", f"{len(tokens)} tokens in one call; {MAX_TOKENS} at most"
        )


def _do(
    instance: Instance,
    handle: int,
    work: Callable[[Matcher], Any],
    after: Callable[[Matcher], None] | None = None,
    *,
    long: bool = False,
) -> Any:
    """Works with a matcher: now; or, the guest suspended, once the mask under way is computed.

    Args:
        instance: the caller.
        handle: of the matcher.
        work: gives the answer; an ApiError is the guest's error.
        after: called if the work went well.
        long: whether the work belongs into a thread, the guest suspended.
    """
    matcher = instance.grammars.matcher(handle)
    matcher.check_free()
    answers: list[Any] = []
    suspended = False

    def done(answer: Any) -> None:
        if after is not None and not isinstance(answer, ApiError):
            after(matcher)
        answers.append(answer)
        if suspended and instance.state is State.RUNNING:
            instance.host.executor.answer(instance, answer)

    def run() -> None:
        if long:
            matcher.lend(lambda: work(matcher), done)
            return
        try:
            answer = work(matcher)
        except ApiError as error:
            answer = error
        done(answer)

    matcher.call(run)
    if not answers:
        suspended = True
        return SUSPENDED
    if isinstance(answers[0], ApiError):
        raise answers[0]
    return answers[0]


FUNCTIONS = implement(
    "grammar",
    compile_grammar,
    take_grammar,
    release_grammar,
    create_matcher,
    destroy_matcher,
    advance,
    rollback,
    count_allowed,
    is_accepting,
    is_finished,
    grammar_mask,
    grammar_forced,
    sample_constrained,
    suspends=(advance, rollback, count_allowed, grammar_mask, grammar_forced),
)
