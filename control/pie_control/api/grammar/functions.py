"""Trait `grammar`: tokens that keep to a JSON schema, a regular expression or a grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pie_control.api.binder import queue_of
from pie_control.api.grammar.matcher import Matcher
from pie_control.api.grammar.service import Grammar, GrammarService
from pie_control.api.sample import enqueue_sample
from pie_control.errors import ApiError, Shortage
from pie_control.fairness import Owner
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Handles, Instance, InstanceState, Turns
from pie_control.models.served import ServedModels
from pie_control.shares import Shares
from pie_control.wasm import SUSPENDED
from pie_py.config.limits import Limits

MAX_TOKENS = 1024  # of one call
MATCHERS = 256  # of one instance, open at once
GRAMMAR_BYTES = 512 << 20  # that instances hold
# A token takes a microsecond as a rule, and some milliseconds in a grammar made for that.
INLINE_TOKENS = 8
# Functions that may suspend the guest.
LONG_CALLS = ("advance", "rollback", "count-allowed", "grammar-mask", "grammar-forced")


Kind = TypeVar("Kind", bound=Grammar | Matcher)
_NAMES: dict[type, str] = {Grammar: "grammar", Matcher: "matcher"}


class GrammarTable:
    """Grammars and matchers of one instance, by handle."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: Handles[Grammar | Matcher] = Handles()

    @property
    def grammars(self) -> list[Grammar]:
        """The grammars."""
        return [held for held in self._held.values() if isinstance(held, Grammar)]

    def check_room(self, kind: type[Grammar | Matcher]) -> None:
        """Raises `limit-exceeded` if there are as many of a kind as there may be."""
        name = _NAMES[kind]
        most = self._limits.grammars if kind is Grammar else MATCHERS
        if sum(isinstance(held, kind) for held in self._held.values()) >= most:
            raise ApiError("limit-exceeded", f"{most} {name}s are open; end one first")

    def add(self, held: Grammar | Matcher) -> int:
        """Holds a grammar or a matcher, and returns its handle."""
        return self._held.add(held)

    def find(self, kind: type[Kind], handle: int) -> Kind:
        """The grammar or matcher behind a handle. Raises ApiError `invalid-handle`."""
        found = self._held.get(handle)
        if not isinstance(found, kind):
            name = _NAMES[kind]
            raise ApiError(
                "invalid-handle", f"{handle} is no {name} of this instance (ended already?)"
            )
        return found

    def remove(self, kind: type[Grammar | Matcher], handle: int) -> None:
        """Lets a grammar or a matcher go. Raises ApiError `invalid-handle`."""
        self.find(kind, handle)
        del self._held[handle]


class GrammarCalls:
    """Grammars and matchers of all instances, by handle."""

    def __init__(
        self, models: ServedModels, grammars: GrammarService, turns: Turns, shares: Shares
    ) -> None:
        self._share = shares.add("bytes of grammars", GRAMMAR_BYTES, self._bytes_of)
        self._models = models
        self._grammars = grammars
        self._turns = turns
        self._tables: dict[Instance, GrammarTable] = {}

    def drop_instance(self, instance: Instance) -> None:
        """Forgets the handles of an instance that has ended."""
        self._tables.pop(instance, None)

    def _bytes_of(self, user: str | None) -> int:
        """Bytes of the grammars that a user's instances hold, or all; each once."""
        held = {
            id(grammar): grammar.size
            for instance, table in self._tables.items()
            if user in (None, instance.user)
            for grammar in table.grammars
        }
        return sum(held.values())

    def _table(self, instance: Instance) -> GrammarTable:
        table = self._tables.get(instance)
        if table is None:
            table = self._tables[instance] = GrammarTable(instance.limits)
        return table

    def compile_grammar(self, instance: Instance, model: str, kind: str, text: str) -> int:
        """Compiles a grammar in a thread and opens a future of it."""
        grammars = self._grammars
        description, codec = self._models.description(model), self._models.codec(model)
        grammars.check(kind, text)
        future = instance.futures.create(FutureKind.GRAMMAR)
        compiled = grammars.compiled(model, kind, text, instance.user)
        if compiled is not None:
            future.resolve(compiled)
            return future.handle

        def done(result: Grammar | ApiError) -> None:
            if isinstance(result, ApiError):
                future.fail(result)
            else:
                future.resolve(result)

        future.on_cancel = grammars.start(description, codec, kind, text, instance.user, done)
        return future.handle

    def take_grammar(self, instance: Instance, future: int) -> int:
        """Consumes a future of a grammar, unless there is no room, and returns its handle."""
        self._table(instance).check_room(Grammar)
        grammar: Grammar | None = instance.futures.of_kind(future, FutureKind.GRAMMAR).value
        if grammar is not None:
            free = GRAMMAR_BYTES - self._bytes_of(None)
            self._share.check(instance.user, grammar.size, free)
            if grammar.size > free:
                said = "the grammars of all users take all that they may"
                raise Shortage(said, "out-of-resources")
        return self._table(instance).add(instance.futures.take(future, FutureKind.GRAMMAR))

    def release_grammar(self, instance: Instance, grammar: int) -> None:
        """Ends a grammar's handle; its matchers go on."""
        self._table(instance).remove(Grammar, grammar)

    def create_matcher(self, instance: Instance, grammar: int) -> int:
        """A matcher at a grammar's start."""
        table = self._table(instance)
        found = table.find(Grammar, grammar)
        table.check_room(Matcher)
        owner = Owner(instance.user, instance.id)
        return table.add(found.matcher(self._turns.give_another, owner))

    def destroy_matcher(self, instance: Instance, matcher: int) -> None:
        """Ends a matcher; a sample that is under way with it goes on."""
        self._table(instance).remove(Matcher, matcher)

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
        return self._table(instance).find(Matcher, matcher).accepting

    def is_finished(self, instance: Instance, matcher: int) -> bool:
        """True if the text must end here, or has ended."""
        return self._table(instance).find(Matcher, matcher).finished

    def grammar_mask(self, instance: Instance, matcher: int) -> Any:
        """The mask of the next token."""
        found = self._table(instance).find(Matcher, matcher)
        found.check_free()
        mask = found.mask()

        def answer(found: Matcher) -> Any:
            if mask.error is not None:
                raise ApiError("limit-exceeded", mask.error)
            return mask.words

        return self._do(instance, matcher, answer)

    def grammar_forced(self, instance: Instance, matcher: int) -> Any:
        """The tokens that follow whatever is chosen."""
        long = not self._table(instance).find(Matcher, matcher).foresees
        return self._do(instance, matcher, lambda found: found.forced(), long=long)

    def sample_constrained(
        self, instance: Instance, queue: int, embed: int, sampler: int, matcher: int
    ) -> int:
        """Queues a choice among the tokens that the grammar allows; the matcher follows it."""
        target = queue_of(instance, queue, "sample")
        found = self._table(instance).find(Matcher, matcher)
        found.check_free()
        model = target.model.description.name
        if found.model != model:
            raise ApiError(
                "invalid-argument",
                f"the matcher is of model {found.model!r}, the queue of {model!r}",
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
        matcher = self._table(instance).find(Matcher, handle)
        matcher.check_free()
        answers: list[Any] = []
        suspended = False

        def done(answer: Any) -> None:
            if after is not None and not isinstance(answer, ApiError):
                after(matcher)
            answers.append(answer)
            if suspended and instance.state is InstanceState.RUNNING:
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
        raise ApiError(
            "invalid-argument", f"{len(tokens)} tokens in one call; {MAX_TOKENS} at most"
        )
