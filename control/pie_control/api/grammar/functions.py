"""Trait `grammar`: tokens that keep to a JSON schema, a regular expression or a grammar."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pie_control.api.binder import queue_of
from pie_control.api.grammar.matcher import Grammar, Matcher
from pie_control.api.grammar.service import GrammarService
from pie_control.api.sample import enqueue_sample
from pie_control.errors import ApiError, Shortage, exceeded, invalid
from pie_control.fairness import Owner
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.instance import Handles, Instance, Turns
from pie_control.models.served import ServedModels
from pie_control.shares import Shares
from pie_control.wasm.linker import SUSPENDED

MAX_TOKENS = 1024  # of one call
MATCHERS = 256  # of one instance, open at once
GRAMMAR_BYTES = 512 << 20  # that instances hold
# A token takes a microsecond as a rule, and some milliseconds in a grammar made for that.
INLINE_TOKENS = 8
# Functions that may suspend the guest.
LONG_CALLS = ("advance", "rollback", "count-allowed", "grammar-mask", "grammar-forced")


Kind = TypeVar("Kind", bound=Grammar | Matcher)
_NAMES: dict[type, str] = {Grammar: "grammar", Matcher: "matcher"}


class GrammarCalls:
    """Grammars and matchers of all instances, by handle."""

    def __init__(
        self, models: ServedModels, grammars: GrammarService, turns: Turns, shares: Shares
    ) -> None:
        self._share = shares.add("bytes of grammars", GRAMMAR_BYTES, self._bytes_of)
        self._models = models
        self._grammars = grammars
        self._turns = turns
        self._tables: dict[Instance, Handles[Grammar | Matcher]] = {}
        self._ready: dict[Instance, dict[Future, Grammar]] = {}  # that were not taken yet

    def drop_instance(self, instance: Instance) -> None:
        """Forgets what an instance held that has ended."""
        self._tables.pop(instance, None)
        self._ready.pop(instance, None)

    def _bytes_of(self, user: str | None) -> int:
        """Bytes of the grammars that a user's instances hold, or all; each once."""
        return sum(self._held(user).values())

    def _held(self, user: str | None) -> dict[int, int]:
        """Bytes of each of them, also of those that a matcher or a future alone holds."""
        held: dict[int, int] = {}
        for tables in (self._tables, self._ready):
            for instance, table in tables.items():
                if user in (None, instance.user):
                    for each in table.values():
                        grammar = each.grammar if isinstance(each, Matcher) else each
                        held[id(grammar)] = grammar.size
        return held

    def _check_bytes(self, instance: Instance, grammar: Grammar) -> None:
        """Raises `limit-exceeded` or `out-of-resources` if there is no room for a grammar."""
        if id(grammar) in self._held(instance.user):
            return
        free = GRAMMAR_BYTES - self._bytes_of(None)
        self._share.check(instance.user, grammar.size, free)
        if grammar.size > free:
            raise Shortage("the grammars of all users take all that they may", "out-of-resources")

    def _check_room(self, instance: Instance, kind: type[Grammar | Matcher]) -> None:
        """Raises `limit-exceeded` if there are as many of a kind as there may be."""
        most = instance.limits.grammars if kind is Grammar else MATCHERS
        held = self._tables.get(instance, Handles()).values()
        if sum(isinstance(each, kind) for each in held) >= most:
            raise exceeded(f"{most} {_NAMES[kind]}s are open; end one first")

    def _add(self, instance: Instance, held: Grammar | Matcher) -> int:
        """Holds a grammar or a matcher, and returns its handle."""
        return self._tables.setdefault(instance, Handles()).add(held)

    def _find(self, instance: Instance, kind: type[Kind], handle: int) -> Kind:
        """The grammar or matcher behind a handle. Raises ApiError `invalid-handle`."""
        found = self._tables.get(instance, Handles()).get(handle)
        if not isinstance(found, kind):
            raise ApiError(
                "invalid-handle",
                f"{handle} is no {_NAMES[kind]} of this instance (ended already?)",
            )
        return found

    def _remove(self, instance: Instance, kind: type[Grammar | Matcher], handle: int) -> None:
        self._find(instance, kind, handle)
        del self._tables[instance][handle]

    def compile_grammar(self, instance: Instance, model: str, kind: str, text: str) -> int:
        """Compiles a grammar in a thread and opens a future of it."""
        grammars = self._grammars
        description, codec = self._models.description(model), self._models.codec(model)
        grammars.check(kind, text)
        future = instance.futures.create(FutureKind.GRAMMAR)

        def done(result: Grammar | ApiError) -> None:
            try:
                if isinstance(result, ApiError):
                    raise result
                self._check_bytes(instance, result)
            except ApiError as error:
                future.fail(error)
                return
            ready = self._ready.setdefault(instance, {})
            ready[future] = result
            future.on_cancel = future.on_take = partial(ready.__delitem__, future)
            future.resolve(result)

        compiled = grammars.compiled(model, kind, text, instance.user)
        if compiled is not None:
            done(compiled)
        else:
            future.on_cancel = grammars.start(description, codec, kind, text, instance.user, done)
        return future.handle

    def take_grammar(self, instance: Instance, future: int) -> int:
        """Consumes a future of a grammar, unless there is no room, and returns its handle."""
        self._check_room(instance, Grammar)
        grammar: Grammar | None = instance.futures.of_kind(future, FutureKind.GRAMMAR).value
        if grammar is not None:
            self._check_bytes(instance, grammar)
        return self._add(instance, instance.futures.take(future, FutureKind.GRAMMAR))

    def release_grammar(self, instance: Instance, grammar: int) -> None:
        """Ends a grammar's handle; its matchers go on."""
        self._remove(instance, Grammar, grammar)

    def create_matcher(self, instance: Instance, grammar: int) -> int:
        """A matcher at a grammar's start."""
        found = self._find(instance, Grammar, grammar)
        self._check_room(instance, Matcher)
        owner = Owner(instance.user, instance.id)
        return self._add(instance, Matcher(found, self._turns.give_another, owner))

    def destroy_matcher(self, instance: Instance, matcher: int) -> None:
        """Ends a matcher; a sample that is under way with it goes on."""
        self._remove(instance, Matcher, matcher)

    def advance(self, instance: Instance, matcher: int, tokens: list[int]) -> Any:
        """Consumes tokens; whether the text may end then."""
        _check_count(tokens)

        def work(found: Matcher) -> bool:
            found.advance(tokens)
            return found.accepting

        def begin_mask(found: Matcher) -> None:
            if not found.finished:
                found.mask()  # the thread has it ready when the model has run the tokens

        return self._do(instance, matcher, work, begin_mask, long=len(tokens) > INLINE_TOKENS)

    def rollback(self, instance: Instance, matcher: int, count: int) -> Any:
        """Takes the last tokens back."""
        return self._do(instance, matcher, lambda found: found.rollback(count))

    def count_allowed(self, instance: Instance, matcher: int, tokens: list[int]) -> Any:
        """How many of the tokens could be consumed."""
        _check_count(tokens)
        return self._do(
            instance,
            matcher,
            lambda found: found.count_allowed(tokens),
            long=len(tokens) > INLINE_TOKENS,
        )

    def is_accepting(self, instance: Instance, matcher: int) -> bool:
        """True if the text may end here."""
        return self._find(instance, Matcher, matcher).accepting

    def is_finished(self, instance: Instance, matcher: int) -> bool:
        """True if the text must end here, or has ended."""
        return self._find(instance, Matcher, matcher).finished

    def grammar_mask(self, instance: Instance, matcher: int) -> Any:
        """The mask of the next token."""
        found = self._find(instance, Matcher, matcher)
        found.check_free()
        mask = found.mask()

        def answer(found: Matcher) -> Any:
            if mask.error is not None:
                raise exceeded(mask.error)
            return mask.words

        return self._do(instance, matcher, answer)

    def grammar_forced(self, instance: Instance, matcher: int) -> Any:
        """The tokens that follow whatever is chosen."""
        long = not self._find(instance, Matcher, matcher).foresees
        return self._do(instance, matcher, lambda found: found.forced(), long=long)

    def sample_constrained(
        self, instance: Instance, queue: int, embed: int, sampler: int, matcher: int
    ) -> int:
        """Queues a choice among the tokens that the grammar allows; the matcher follows it."""
        target = queue_of(instance, queue, "sample")
        found = self._find(instance, Matcher, matcher)
        found.check_free()
        own, model = found.grammar.model, target.model.description.name
        if own != model:
            raise invalid(f"the matcher is of model {own!r}, the queue of {model!r}")
        if found.ended:
            raise invalid("the text has ended with a stop token; take it back to go on")
        found.sampling = True
        try:
            return enqueue_sample(instance, target, embed, sampler, found.mask(), found.on_token)
        except ApiError:
            found.sampling = False
            raise

    def _do(
        self,
        instance: Instance,
        handle: int,
        work: Callable[[Matcher], Any],
        after: Callable[[Matcher], None] | None = None,
        *,
        long: bool = False,
    ) -> Any:
        """Works with a matcher: now; or, the guest suspended, once the mask under way is computed.

        `work` gives the answer, or raises the guest's error; `after` is called if it went well. If
        it is `long`, it goes into a thread, the guest suspended.
        """
        matcher = self._find(instance, Matcher, handle)
        matcher.check_free()
        table = self._tables[instance]  # gone with the instance, or with this life of it
        answers: list[Any] = []
        suspended = False

        def done(answer: Any) -> None:
            if after is not None and not isinstance(answer, ApiError):
                after(matcher)
            answers.append(answer)
            if suspended and self._tables.get(instance) is table:
                self._turns.answer(instance, answer)

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


def _check_count(tokens: list[int]) -> None:
    if len(tokens) > MAX_TOKENS:
        raise invalid(f"{len(tokens)} tokens in one call; {MAX_TOKENS} at most")
